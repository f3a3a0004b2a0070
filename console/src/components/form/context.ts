/** Context shared by all parts of a form. */

import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { Resolved } from "../../form/schema";
import type { Json, Path } from "../../json/value";
import type { FormState } from "../../state/form";

const Context = createContext<FormState | undefined>(undefined);
export const FormProvider = Context.Provider;

export function useForm(): FormState {
  const form = useContext(Context);
  if (!form) throw new Error("a field is outside its form");
  return form;
}

/** A path in the value, and its schema. */
export interface FieldProps {
  path: Path;
  name: string;
  schema: Resolved;
  required: boolean;
  depth: number;
  /** Label at the left of its control, as in items of lists. */
  compact?: boolean;
  /** No label: an item of a list. */
  bare?: boolean;
  /** The selected branch of a union, which shows the messages. */
  inner?: boolean;
}

export interface ControlProps extends FieldProps {
  id: string;
  value: Json | undefined;
  describedBy: string | undefined;
  isBad: boolean;
}

/** The id of the control of a field. */
export function fieldId(pointer: string): string {
  return `field:${pointer}`;
}
