/** The recent calls of an operation: show one again, compare two, run it again. */

import { useState } from "preact/hooks";
import { to } from "../addresses";
import type { Operation } from "../api/types";
import { clock } from "../format";
import { go } from "../router";
import type { PastCall } from "../state/history";
import { showPast } from "../state/runs";
import { isLost } from "../state/session";
import { Button } from "./Button";

const SHOWN = 3;

export function HistoryBar(props: {
  operation: Operation;
  past: PastCall[];
  shown: string | undefined;
  rerun: () => void;
}) {
  const { past, shown } = props;
  const [comparing, setComparing] = useState(false);
  const other = past.filter((call) => call.id !== shown);
  const choose = (call: PastCall) => {
    if (comparing && shown && call.id !== shown) go(to.compare(shown, call.id));
    else showPast(props.operation, call);
    setComparing(false);
  };
  return (
    <div class="footbar">
      <span class="t3">{comparing ? "With" : "History"}</span>
      {past.length === 0 && <span class="t3">no calls yet</span>}
      <span class="past">
        {past.slice(0, SHOWN + (comparing ? 3 : 0)).map((call) => (
          <button
            key={call.id}
            type="button"
            class={`chip m ${call.outcome === "ok" ? "g" : "e"}`}
            aria-current={call.id === shown ? "true" : undefined}
            disabled={comparing && call.id === shown}
            onClick={() => choose(call)}
          >
            {clock(call.at)} {call.label}
          </button>
        ))}
      </span>
      <span class="right row">
        <Button
          look="x"
          disabled={other.length === 0 || !shown}
          aria-pressed={comparing}
          onClick={() =>
            other.length === 1 && other[0] && shown ? go(to.compare(shown, other[0].id)) : setComparing(!comparing)
          }
        >
          Compare
        </Button>
        <Button icon="again" disabled={!shown || isLost.value} onClick={props.rerun}>
          Re-run
        </Button>
      </span>
    </div>
  );
}
