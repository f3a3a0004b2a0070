import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/controls.css";
import "./styles/tables.css";
import "./styles/frame.css";
import "./styles/form.css";
import "./styles/result.css";
import "./styles/lists.css";
import "./styles/phone.css";
import { start } from "./app";

const root = document.querySelector("#app");
if (root) start(root);
