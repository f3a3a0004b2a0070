/** The red bar shown while the server is unreachable, with the age of the data. */

import { useEffect, useState } from "preact/hooks";
import { age } from "../format";
import { connect, connection } from "../state/session";
import { Button } from "./Button";
import { Icon } from "./Icon";

export function LostBar() {
  const { state, retryAt, lostAt } = connection.value;
  const [, tick] = useState(0);
  useEffect(() => {
    if (state !== "lost") return;
    const timer = setInterval(() => tick((count) => count + 1), 500);
    return () => clearInterval(timer);
  }, [state]);
  if (state !== "lost") return null;
  const seconds = Math.max(0, Math.ceil(((retryAt ?? 0) - Date.now()) / 1000));
  return (
    <div class="lost" role="alert">
      <Icon name="error" small />
      <span>Connection lost, retrying in {seconds} s</span>
      {lostAt && <span class="t2">the data shown is {age(lostAt)} old</span>}
      <Button class="right" onClick={() => void connect()}>
        Retry now
      </Button>
    </div>
  );
}
