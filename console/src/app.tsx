/** The page: its frame and the current screen. */

import { effect } from "@preact/signals";
import { type ComponentType, render } from "preact";
import { to } from "./addresses";
import { Frame } from "./components/Frame";
import { KeyHelp } from "./components/KeyHelp";
import { Empty } from "./components/Notice";
import { SignIn } from "./components/SignIn";
import { startKeyboard } from "./keyboard";
import { lazy } from "./lazy";
import { route, startRouter } from "./router";
import { Operation } from "./screens/Operation";
import { Search } from "./screens/Search";
import { loadHistory } from "./state/history";
import { startLive } from "./state/live";
import { startTheme } from "./state/preferences";
import { historyOwner, session, startSession } from "./state/session";

const SCREENS: Record<string, ComponentType> = {
  operations: Search,
  op: Operation,
  calls: lazy(() => import("./screens/Calls").then((loaded) => loaded.Calls)),
  compare: lazy(() => import("./screens/Compare").then((loaded) => loaded.Compare)),
  traces: lazy(() => import("./screens/Trace").then((loaded) => loaded.Trace)),
  workers: lazy(() => import("./screens/Workers").then((loaded) => loaded.Workers)),
  jobs: lazy(() => import("./screens/Jobs").then((loaded) => loaded.Jobs)),
  metrics: lazy(() => import("./screens/Metrics").then((loaded) => loaded.Metrics)),
  audit: lazy(() => import("./screens/Audit").then((loaded) => loaded.Audit)),
};

function App() {
  const Screen = SCREENS[route.value.screen];
  return (
    <>
      <Frame>
        {Screen ? (
          <Screen key={route.value.screen} />
        ) : (
          <Empty>
            There is no such page.{" "}
            <a class="acc" href={to.operations()}>
              Operations
            </a>
          </Empty>
        )}
      </Frame>
      <SignIn />
      <KeyHelp />
    </>
  );
}

/** A file that is dropped beside its field does nothing: the browser would open it in place of the page. */
function ignoreOtherDrops(event: DragEvent): void {
  if (!event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  if (!(event.target as Element).closest?.(".drop, [data-editor]")) event.dataTransfer.dropEffect = "none";
}

export function start(root: Element): void {
  startTheme();
  startRouter();
  startKeyboard();
  window.addEventListener("dragover", ignoreOtherDrops);
  window.addEventListener("drop", ignoreOtherDrops);
  startSession();
  startLive();
  let owner = "";
  effect(() => {
    const next = session.value ? historyOwner() : "";
    if (next === owner) return;
    owner = next;
    if (owner) void loadHistory(owner);
  });
  render(<App />, root);
}
