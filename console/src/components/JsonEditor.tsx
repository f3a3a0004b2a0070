/** The JSON editor: CodeMirror, loaded on use, in a shadow root where the content security policy allows its styles.
 *
 * If CodeMirror cannot be loaded, a text field replaces it.
 */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Editor, EditorProblem } from "../editor";

export function JsonEditor(props: {
  text: string;
  label: string;
  id?: string;
  class?: string;
  change?: (text: string) => void;
  /** Called when the focus leaves the editor. */
  leave?: () => void;
  problems?: EditorProblem[] | undefined;
}) {
  const host = useRef<HTMLDivElement>(null);
  const editor = useRef<Editor | undefined>(undefined);
  const [isReady, setReady] = useState(false);
  const [isFailed, setFailed] = useState(false);
  const change = useRef(props.change);
  change.current = props.change;
  useEffect(() => {
    let isHere = true;
    import("../editor").then(
      ({ openEditor }) => {
        if (!isHere || !host.current) return;
        editor.current = openEditor(
          host.current,
          props.text,
          props.label,
          (text) => change.current?.(text),
          !props.change,
        );
        setReady(true);
      },
      () => setFailed(true),
    );
    return () => {
      isHere = false;
      editor.current?.close();
    };
  }, []);
  // Before the next key: a later effect would replace newer input with an older text.
  useLayoutEffect(() => editor.current?.setText(props.text), [props.text, isReady]);
  const { problems } = props;
  useEffect(() => editor.current?.setProblems(problems ?? []), [problems, isReady]);
  const isBroken = problems?.some(({ pointer }) => pointer === undefined);
  if (isFailed) {
    return (
      <textarea
        id={props.id}
        class={`in m ${isBroken ? "bad" : ""}`}
        rows={12}
        aria-label={props.label}
        value={props.text}
        onInput={(event) => props.change?.(event.currentTarget.value)}
        onBlur={props.leave}
      />
    );
  }
  return (
    <div
      id={props.id}
      class={`editor ${props.class ?? ""} ${isBroken ? "bad" : ""}`}
      ref={host}
      aria-busy={!isReady}
      data-editor
      onFocusOut={props.leave}
    />
  );
}
