/** The list of keyboard shortcuts. */

import { helpOpen } from "../keyboard";
import { letterKeys } from "../state/preferences";
import { Dialog } from "./Dialog";

const KEYS: [string, string][] = [
  ["/ or Ctrl-K", "search"],
  ["↑ ↓ Enter Esc", "move, open, clear or close"],
  ["Ctrl-Enter, Ctrl-.", "run, cancel"],
  ["g then o c w j m", "go to operations, calls, workers, jobs, metrics"],
  ["e", "switch between form and JSON"],
  ["1 – 4", "show a tab of the result"],
  ["Space", "pause a stream"],
  ["← →", "fold and unfold"],
  ["[ ]", "previous, next call"],
  ["?", "this list"],
];

export function KeyHelp() {
  if (!helpOpen.value) return null;
  return (
    <Dialog title="Keyboard" close={() => (helpOpen.value = false)}>
      <div class="keys">
        {KEYS.map(([key, does]) => [
          <span key={key}>
            <kbd>{key}</kbd>
          </span>,
          <span key={`${key} does`}>{does}</span>,
        ])}
      </div>
      <label class="check pt">
        <input
          type="checkbox"
          checked={letterKeys.value}
          onChange={(event) => (letterKeys.value = event.currentTarget.checked)}
        />
        Use single-character keys
      </label>
    </Dialog>
  );
}
