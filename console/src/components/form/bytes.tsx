/** Bytes: a file that is chosen, dropped or pasted. */

import { size } from "../../format";
import { toBase64 } from "../../json/text";
import { isBytes, pointerOf } from "../../json/value";
import { Button } from "../Button";
import { Icon } from "../Icon";
import { type ControlProps, useForm } from "./context";

export function BytesControl(props: ControlProps & { media: string }) {
  const form = useForm();
  const { path, value } = props;
  const take = async (file: Blob | null | undefined) => {
    if (!file) return;
    form.set(path, { $bytes: toBase64(new Uint8Array(await file.arrayBuffer())) });
    form.touch(pointerOf(path));
  };
  return (
    <div
      class={`in drop ${props.isBad ? "bad" : ""}`}
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        void take(event.dataTransfer?.files[0]);
      }}
      onPaste={(event) => void take(event.clipboardData?.files[0])}
    >
      <Icon name="file" small />
      {isBytes(value) ? (
        <>
          <span>{size(Math.floor((value.$bytes.replace(/=+$/, "").length * 3) / 4))}</span>
          <Button look="x" icon="close" label={`Remove the file of ${props.name}`} onClick={() => form.remove(path)} />
        </>
      ) : (
        <input
          id={props.id}
          type="file"
          aria-describedby={props.describedBy}
          accept={props.media || undefined}
          onChange={(event) => void take(event.currentTarget.files?.[0])}
        />
      )}
    </div>
  );
}
