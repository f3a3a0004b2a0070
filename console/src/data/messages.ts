/** Messages between the page and its worker. */

import type { CatalogueEntry } from "../api/types";
import type { Filters } from "../search/ranking";

export type Question =
  | { kind: "index"; entries: CatalogueEntry[] }
  | { kind: "search"; query: string; filters: Filters }
  | { kind: "read"; document: number; body: ArrayBuffer; isEnvelope: boolean }
  | { kind: "close"; document: number }
  | { kind: "children" | "columns" | "rows" | "csv" | "find" | "part" | "text"; document: number; given: unknown[] };

export interface Message {
  id: number;
  question: Question;
}

export interface Reply {
  id: number;
  result?: unknown;
  error?: string;
}
