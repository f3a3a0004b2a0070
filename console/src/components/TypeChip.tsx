/** The kind of an operation, by icon, word and colour. */

import type { OperationType } from "../api/types";
import { Icon } from "./Icon";

const LOOK: Record<OperationType, string> = { query: "", mutation: "w", subscription: "a" };

export function TypeChip(props: { type: OperationType }) {
  return (
    <span class={`chip ${LOOK[props.type]}`}>
      <Icon name={props.type} small />
      {props.type}
    </span>
  );
}

export function TypeIcon(props: { type: OperationType }) {
  return (
    <Icon name={props.type} class={props.type === "mutation" ? "mu" : props.type === "subscription" ? "su" : "q"} />
  );
}
