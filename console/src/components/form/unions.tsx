/** Unions: one of several schemas. The selector is in the label, or beside the control in a list. */

import { branchOf } from "../../form/branch";
import { type Control, describe } from "../../form/control";
import { addedValue } from "../../form/defaults";
import type { Resolved, Schemas } from "../../form/schema";
import { pointerOf } from "../../json/value";
import { Segmented } from "../Choices";
import { type ControlProps, useForm } from "./context";
import { Field } from "./Field";

type UnionProps = ControlProps & { control: Extract<Control, { kind: "union" }> };

function useBranch(props: UnionProps): { at: number; choose: (index: number) => void } {
  const form = useForm();
  const { control, path, value } = props;
  const chosen = form.choices.value.get(pointerOf(path));
  const at = chosen !== undefined && chosen < control.branches.length ? chosen : branchOf(control, value, form.schemas);
  const choose = (index: number) => {
    const branch = control.branches[index];
    if (!branch) return;
    const { schema } = branch;
    form.choose(path, at, index, addedValue(schema, form.schemas), variableNames(schema, form.schemas));
  };
  return { at, choose };
}

/** The names of an object's properties, without constants such as the discriminator. */
function variableNames(schema: Resolved, schemas: Schemas): Set<string> {
  const { control } = describe(schema, schemas);
  const members = control.kind === "object" ? control.members : [];
  const variable = members.filter((member) => describe(member.schema, schemas).control.kind !== "const");
  return new Set(variable.map(({ name }) => name));
}

export function UnionSelector(props: UnionProps) {
  const { at, choose } = useBranch(props);
  const choices = props.control.branches.map((branch, index) => ({ id: String(index), label: branch.label }));
  return (
    <Segmented
      class="m"
      label={`Form of ${props.name}`}
      choices={choices}
      value={String(at)}
      choose={(id) => choose(Number(id))}
    />
  );
}

export function UnionControl(props: UnionProps) {
  const { at, choose } = useBranch(props);
  const { control, compact, bare } = props;
  const branch = control.branches[at];
  if (!branch) return null;
  const field = (
    <Field
      key={at}
      path={props.path}
      name={props.name}
      schema={branch.schema}
      required
      depth={props.depth}
      bare
      inner
      {...(compact ? { compact: true } : {})}
    />
  );
  const inLabel = !compact && control.branches.length <= 4;
  if (inLabel && !bare) return field;
  if (control.branches.length <= 4) {
    return (
      <div class="alt">
        <UnionSelector {...props} />
        {field}
      </div>
    );
  }
  return (
    <div class="col" style={{ gap: "8px" }}>
      <select
        class="in"
        aria-label={`Form of ${props.name}`}
        value={String(at)}
        onChange={(event) => choose(Number(event.currentTarget.value))}
      >
        {control.branches.map((each, index) => (
          <option key={index} value={String(index)}>
            {each.label}
          </option>
        ))}
      </select>
      {field}
    </div>
  );
}
