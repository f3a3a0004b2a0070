/** The call as code, folded by default. */

import { useState } from "preact/hooks";
import { token } from "../api/client";
import { codeFor, type Language } from "../code";
import type { FormState } from "../state/form";
import { codeTab } from "../state/preferences";
import { CopyButton } from "./Button";
import { Segmented } from "./Choices";
import { Icon } from "./Icon";

const LANGUAGES = [
  { id: "ops", label: "ops" },
  { id: "python", label: "Python" },
  { id: "curl", label: "curl" },
] as const;

export function CodeTabs(props: { form: FormState }) {
  const [isOpen, setOpen] = useState(false);
  const language = codeTab.value as Language;
  const isReadable = props.form.isReadable.value;
  const code = () => codeFor(language, props.form.operation, props.form.value.value, Boolean(token.value));
  const choose = (id: Language) => {
    codeTab.value = id;
    setOpen(true);
  };
  return (
    <div class="code hide">
      <div class="row">
        <button type="button" class="row" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          <span class="t3">
            <Icon name={isOpen ? "down" : "right"} small />
          </span>
          <h2>Code</h2>
        </button>
        <Segmented label="Language" choices={[...LANGUAGES]} value={language} choose={choose} />
        <span class="right">
          <CopyButton look="x" label="Copy code" text={code} disabled={!isReadable} />
        </span>
      </div>
      {isOpen && <pre data-testid="code">{isReadable ? code() : "The input has text that is not JSON."}</pre>}
    </div>
  );
}
