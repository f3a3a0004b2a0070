/** The sign-in dialog: one token, kept for this tab. */

import { useState } from "preact/hooks";
import { session, signIn, useToken } from "../state/session";
import { Button } from "./Button";
import { Dialog } from "./Dialog";
import { Icon } from "./Icon";

export function SignIn() {
  const [text, setText] = useState("");
  const [isBusy, setBusy] = useState(false);
  if (!signIn.value.open) return null;
  const submit = async (event: Event) => {
    event.preventDefault();
    if (!text.trim() || isBusy) return;
    setBusy(true);
    const accepted = await useToken(text.trim());
    setBusy(false);
    if (accepted) setText("");
  };
  const close = () => {
    signIn.value = { open: false };
  };
  return (
    <Dialog title="Sign in" close={close}>
      <form onSubmit={submit} class="col">
        <p class="t2">A token or API key of this server. It stays in this tab and is sent to {location.host} only.</p>
        <div>
          <label class="lab" for="token">
            Token
          </label>
          <input
            id="token"
            class={`in ${signIn.value.message ? "bad" : ""}`}
            type="password"
            autocomplete="current-password"
            value={text}
            aria-describedby="token-message"
            onInput={(event) => setText(event.currentTarget.value)}
          />
          {signIn.value.message && (
            <div class="msg" id="token-message" role="alert">
              <Icon name="error" small />
              {signIn.value.message}
            </div>
          )}
          <p class="help">
            <code>ops keys new NAME --scope SCOPE</code> creates an API key.
          </p>
        </div>
        <div class="row">
          <Button look="p" type="submit" disabled={isBusy}>
            Sign in
          </Button>
          {session.value && !session.value.authRequired && <Button onClick={close}>Not now</Button>}
        </div>
      </form>
    </Dialog>
  );
}
