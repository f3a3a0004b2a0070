/** Messages between the page and its worker. */

import type { CatalogueEntry } from "../api/types";
import type { Filters } from "../search/ranking";
import type { CallRequest } from "./requests";

export type Question =
  | { kind: "index"; entries: CatalogueEntry[] }
  | { kind: "search"; query: string; filters: Filters }
  | { kind: "call"; document: number; request: CallRequest }
  | { kind: "follow"; request: CallRequest }
  /** The page has received the last events of a stream. */
  | { kind: "taken"; of: number }
  | { kind: "abort"; of: number }
  | { kind: "decode"; base64: string }
  | { kind: "close"; document: number }
  | {
      kind: "children" | "columns" | "rows" | "csv" | "find" | "start" | "bytes" | "text" | "file";
      document: number;
      given: unknown[];
    };

export interface Message {
  id: number;
  question: Question;
}

export interface Reply {
  id: number;
  result?: unknown;
  error?: string;
  /** A part of a result that is not complete. */
  part?: unknown;
}
