/** Problems without a visible field, above Run. */

import { useEffect, useState } from "preact/hooks";
import type { FoundProblem } from "../form/validate";
import { type FormState, fieldOf, nearestField } from "../state/form";
import { fieldId } from "./form/context";
import { Icon } from "./Icon";

export function ProblemList(props: { form: FormState }) {
  const { form } = props;
  const [listed, setListed] = useState<FoundProblem[]>([]);
  const all = form.all.value;
  const isShown = form.showsAll.value || form.refused.value.length > 0;
  const view = form.view.value;
  useEffect(() => {
    const has = (pointer: string) => document.getElementById(fieldId(pointer)) !== null;
    setListed(isShown ? all.filter((problem) => view === "json" || !has(fieldOf(problem))) : []);
  }, [all, isShown, view]);
  if (listed.length === 0) return null;
  const focus = (problem: FoundProblem) => {
    const near = nearestField(problem, (pointer) => document.getElementById(fieldId(pointer)) !== null);
    if (near !== undefined) document.getElementById(fieldId(near))?.focus();
    else form.view.value = "json";
  };
  return (
    <ul class="problems" aria-label="Problems">
      {listed.map((problem) => (
        <li key={problem.pointer + problem.detail}>
          <button type="button" onClick={() => focus(problem)}>
            <Icon name="error" small />
            <span>
              <code>{problem.pointer || "(input)"}</code> {problem.detail}
            </span>
          </button>
        </li>
      ))}
    </ul>
  );
}
