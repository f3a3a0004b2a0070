/** The form of an operation's input. */

import type { FormState } from "../../state/form";
import { FormProvider } from "./context";
import { Field } from "./Field";

export function SchemaForm(props: { form: FormState }) {
  const { form } = props;
  const error = form.jsonError.value;
  return (
    <FormProvider value={form}>
      {error && (
        <div class="msg" role="status">
          JSON has an error at {error.line}:{error.column}: the form shows the last valid input.
        </div>
      )}
      <div class={error ? "locked" : ""} inert={Boolean(error)}>
        <Field
          key={form.resets.value}
          path={[]}
          name=""
          schema={form.schemas.resolve(form.operation.inputSchema)}
          required
          depth={0}
          bare
        />
      </div>
    </FormProvider>
  );
}
