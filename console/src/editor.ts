/** CodeMirror for JSON, with the page's colours: its core, with colours by pattern instead of a parser (25 KB less). */

import { history, historyKeymap, insertNewlineKeepIndent } from "@codemirror/commands";
import { EditorState } from "@codemirror/state";
import {
  Decoration,
  EditorView,
  highlightActiveLine,
  keymap,
  lineNumbers,
  MatchDecorator,
  ViewPlugin,
  type ViewUpdate,
} from "@codemirror/view";

export interface Editor {
  setText(text: string): void;
  close(): void;
}

const theme = EditorView.theme({
  "&": { height: "100%", minHeight: "160px", background: "var(--panel)", color: "var(--text)", fontSize: "12px" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "20px" },
  ".cm-content": { caretColor: "var(--text)" },
  ".cm-gutters": { background: "var(--sunken)", color: "var(--text-3)", border: "none" },
  ".cm-activeLine": { background: "var(--hover)" },
  ".j-s": { color: "var(--str)" },
  ".j-d": { color: "var(--num)" },
  ".j-l": { color: "var(--lit)" },
  ".j-p": { color: "var(--text-3)" },
});

const MARKS = {
  k: Decoration.mark({ class: "j-k" }),
  s: Decoration.mark({ class: "j-s" }),
  d: Decoration.mark({ class: "j-d" }),
  l: Decoration.mark({ class: "j-l" }),
  p: Decoration.mark({ class: "j-p" }),
};

/** Names, texts, numbers, words and punctuation. A text of JSON never spans lines. */
const TOKENS = /("(?:[^"\\]|\\.)*")(?=\s*:)|("(?:[^"\\]|\\.)*"?)|(-?\d[\d.eE+-]*)|(true|false|null)|[{}[\],:]/g;

const matcher = new MatchDecorator({
  regexp: TOKENS,
  decoration: ([, name, text, number, word]) =>
    name ? MARKS.k : text ? MARKS.s : number ? MARKS.d : word ? MARKS.l : MARKS.p,
});

const colours = ViewPlugin.fromClass(
  class {
    decorations;

    constructor(view: EditorView) {
      this.decorations = matcher.createDeco(view);
    }

    update(update: ViewUpdate) {
      this.decorations = matcher.updateDeco(update, this.decorations);
    }
  },
  { decorations: (plugin) => plugin.decorations },
);

/** Tab indents by two spaces. Escape then Tab leaves the editor, as in every CodeMirror. */
const indent = {
  key: "Tab",
  run: (view: EditorView) => {
    view.dispatch(view.state.replaceSelection("  "));
    return true;
  },
};

export function openEditor(
  host: HTMLElement,
  text: string,
  label: string,
  change: (text: string) => void,
  readOnly: boolean,
): Editor {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  const place = document.createElement("div");
  place.style.height = "100%";
  root.replaceChildren(place);
  const view = new EditorView({
    root,
    parent: place,
    state: EditorState.create({
      doc: text,
      extensions: [
        lineNumbers(),
        history(),
        highlightActiveLine(),
        colours,
        theme,
        EditorView.lineWrapping,
        EditorView.contentAttributes.of({ "aria-label": label }),
        EditorState.readOnly.of(readOnly),
        keymap.of([...historyKeymap, { key: "Enter", run: insertNewlineKeepIndent }, indent]),
        EditorView.updateListener.of((update) => {
          if (update.docChanged && !update.transactions.some((each) => each.isUserEvent("from.form")))
            change(update.state.doc.toString());
        }),
      ],
    }),
  });
  return {
    setText(next) {
      if (view.hasFocus || view.state.doc.toString() === next) return;
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: next }, userEvent: "from.form" });
    },
    close: () => view.destroy(),
  };
}
