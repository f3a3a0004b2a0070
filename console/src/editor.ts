/** CodeMirror for JSON, with the page's colours: its core, with colours by pattern instead of a parser (25 KB less).
 *
 * Objects and arrays fold; errors are underlined and marked at their line.
 */

import { history, historyKeymap, insertNewlineKeepIndent } from "@codemirror/commands";
import { codeFolding, foldGutter, foldKeymap, foldService } from "@codemirror/language";
import { EditorState, RangeSet, StateEffect, StateField, type Text } from "@codemirror/state";
import {
  Decoration,
  type DecorationSet,
  EditorView,
  GutterMarker,
  gutterLineClass,
  highlightActiveLine,
  keymap,
  lineNumbers,
  MatchDecorator,
  ViewPlugin,
  type ViewUpdate,
} from "@codemirror/view";
import { foldsOf, type Place, placesOf } from "./json/places";
import { errorOffset } from "./json/text";

/** An error in the text: at a JSON pointer, or at the first invalid character. */
export interface EditorProblem {
  pointer?: string;
  detail: string;
}

export interface Editor {
  setText(text: string): void;
  /** Mark the errors in the text. */
  setProblems(problems: EditorProblem[]): void;
  close(): void;
}

const theme = EditorView.theme({
  "&": {
    height: "100%",
    minHeight: "var(--least)",
    background: "var(--panel)",
    color: "var(--text)",
    fontSize: "12px",
  },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "20px" },
  ".cm-content": { caretColor: "var(--text)" },
  ".cm-gutters": { background: "var(--sunken)", color: "var(--text-3)", border: "none" },
  ".cm-activeLine": { background: "var(--hover)" },
  ".cm-foldGutter .cm-gutterElement": { cursor: "pointer" },
  ".cm-foldPlaceholder": { background: "var(--sunken)", color: "var(--text-2)", border: "1px solid var(--line-2)" },
  ".j-wrong": { borderBottom: "2px solid var(--err)" },
  ".j-wrong-line": { color: "var(--err)", fontWeight: "600" },
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

/** Names, strings, numbers, keywords and punctuation. JSON strings never span lines. */
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

const known = new WeakMap<Text, Map<number, Place>>();

/** Objects and arrays of several lines, computed once per text. */
const folding = foldService.of((state, lineStart) => {
  let folds = known.get(state.doc);
  if (!folds) {
    folds = foldsOf(state.doc.toString());
    known.set(state.doc, folds);
  }
  return folds.get(lineStart) ?? null;
});

const setWrong = StateEffect.define<EditorProblem[]>();

class WrongLine extends GutterMarker {
  override elementClass = "j-wrong-line";
}
const WRONG_LINE = new WrongLine();

/** Errors, underlined with the message as a tooltip; this linter is 10 KB smaller than CodeMirror's. */
const wrong = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(marks, transaction) {
    const found = transaction.effects.find((each) => each.is(setWrong));
    if (!found) return marks.map(transaction.changes);
    const text = transaction.newDoc.toString();
    const ranges = placesOfProblems(text, found.value).map(({ from, to, detail }) =>
      Decoration.mark({ class: "j-wrong", attributes: { title: detail } }).range(from, to),
    );
    return Decoration.set(ranges, true);
  },
  provide: (field) => [
    EditorView.decorations.from(field),
    gutterLineClass.compute([field], (state) => {
      const lines = new Set<number>();
      for (const each = state.field(field).iter(); each.value; each.next()) lines.add(state.doc.lineAt(each.from).from);
      return RangeSet.of(
        [...lines].map((from) => WRONG_LINE.range(from)),
        true,
      );
    }),
  ],
});

function placesOfProblems(text: string, problems: EditorProblem[]): (Place & { detail: string })[] {
  const places = placesOf(text, new Set(problems.map(({ pointer }) => pointer ?? "")));
  return problems.flatMap(({ pointer, detail }) => {
    const at = Math.max(0, Math.min(errorOffset(text), text.length - 1));
    const { from, to } = (pointer === undefined ? undefined : places.get(pointer)) ?? { from: at, to: at + 1 };
    const line = text.indexOf("\n", from); // only the first line of a value is underlined
    const end = Math.min(to, line < 0 ? text.length : Math.max(line, from + 1), text.length);
    return end > from ? [{ from, to: end, detail }] : [];
  });
}

/** F8 goes to the next problem, as in other editors. */
const nextProblem = {
  key: "F8",
  run: (view: EditorView) => {
    const marks = view.state.field(wrong);
    const { head } = view.state.selection.main;
    const next = marks.iter(head + 1).value ? marks.iter(head + 1) : marks.iter();
    if (!next.value) return false;
    view.dispatch({ selection: { anchor: next.from }, scrollIntoView: true });
    return true;
  },
};

/** Tab indents by two spaces. Escape then Tab leaves the editor, as in every CodeMirror. */
const indent = {
  key: "Tab",
  run: (view: EditorView) => {
    view.dispatch(view.state.replaceSelection("  "));
    return true;
  },
};

/**
 * Replaces a selection by typed text. Chromium by itself would copy the style of the old text to an inline style, which
 * the page's content security policy blocks.
 */
const typeOver = EditorView.domEventHandlers({
  beforeinput(event, view) {
    const { state } = view;
    if (event.inputType !== "insertText" || !event.data || event.isComposing) return false;
    if (state.readOnly || state.selection.main.empty) return false;
    view.dispatch(state.replaceSelection(event.data), { userEvent: "input.type", scrollIntoView: true });
    return true;
  },
});

export function openEditor(
  host: HTMLElement,
  text: string,
  label: string,
  change: (text: string) => void,
  readOnly: boolean,
): Editor {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open", delegatesFocus: true });
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
        wrong,
        codeFolding({ placeholderText: "…" }),
        foldGutter(),
        folding,
        history(),
        highlightActiveLine(),
        typeOver,
        colours,
        theme,
        EditorView.lineWrapping,
        EditorView.contentAttributes.of({ "aria-label": label }),
        EditorState.readOnly.of(readOnly),
        keymap.of([
          ...historyKeymap,
          ...foldKeymap,
          nextProblem,
          { key: "Enter", run: insertNewlineKeepIndent },
          indent,
        ]),
        EditorView.updateListener.of((update) => {
          if (update.docChanged && !update.transactions.some((each) => each.isUserEvent("from.form")))
            change(update.state.doc.toString());
        }),
      ],
    }),
  });
  // The host passes its focus to its first focusable element, which must be the text.
  view.scrollDOM.removeAttribute("tabindex");
  return {
    setText(next) {
      if (view.hasFocus || view.state.doc.toString() === next) return;
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: next }, userEvent: "from.form" });
    },
    setProblems(problems) {
      view.dispatch({ effects: setWrong.of(problems) });
    },
    close: () => view.destroy(),
  };
}
