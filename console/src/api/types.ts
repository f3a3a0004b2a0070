/** Types of the server's API; see docs/console-api.md. */

import type { Json, JsonObject } from "../json/value";

export type OperationType = "query" | "mutation" | "subscription";
export type Feature = "calls" | "feed" | "workers" | "metrics" | "audit" | "jobs";
/** A JSON Schema document. */
export type Schema = boolean | SchemaObject;
export interface SchemaObject {
  [keyword: string]: unknown;
}

export interface Session {
  identity: { id: string; scopes: string[] } | null;
  authRequired: boolean;
  server: { name: string; version: string; kind: string; release?: string };
  features: Feature[];
  catalogueVersion: string;
  limits?: { bodyBytes: number; deadlineSeconds: number };
}

export interface Source {
  name: string;
  kind: string;
  state: "ready" | "failed";
  reason?: string;
  count: number;
}

export interface CatalogueEntry {
  id: string;
  type: OperationType;
  title?: string;
  description?: string;
  source: string;
  tags?: string[];
  fields?: string[];
  scopes?: string[];
  method?: string;
  path?: string;
  deprecated?: boolean;
  streams?: boolean;
}

export interface Catalogue {
  version: string;
  sources: Source[];
  operations: CatalogueEntry[];
}

export interface Operation {
  id: string;
  name: string;
  namespace: string;
  version: string;
  type: OperationType;
  title?: string;
  description?: string;
  tags?: string[];
  annotations?: { [name: string]: Json };
  inputSchema: Schema;
  outputSchema: Schema;
  errorSchemas?: { [code: string]: Schema };
  accessControl?: {
    requiredScopes?: string[];
    requiredScopesAny?: string[];
    resourceType?: string;
    resourceAction?: string;
  };
  outputPolicy?: string;
  durable?: boolean;
  source: string;
  signature?: string;
  http?: { path: string; methods: string[] };
  executes?: boolean;
  streams?: boolean;
  examples: { title?: string; input: Json }[];
}

export interface Attempt {
  startedAt: number;
  endedAt?: number;
  code?: string;
  status?: number;
  delayMs?: number;
}

export interface Span {
  requestId: string;
  traceId: string;
  parentRequestId?: string;
  operationId?: string;
  caller?: string;
  protocol?: string;
  kind?: string;
  worker?: string;
  queuedAt: number;
  startedAt?: number;
  endedAt?: number;
  /** The slots of the worker, all of which were busy when the call was queued. */
  busySlots?: number;
  attempts: Attempt[];
  outcome?: "ok" | "failed" | "cancelled";
  code?: string;
  status?: number;
  bytes?: number;
  label?: string;
  streaming?: boolean;
  items?: number;
  message?: string;
  hidden?: boolean;
  input?: Json;
  output?: Json;
  inputBytes?: number;
  outputBytes?: number;
  cancellable?: boolean;
  differences?: Difference[];
}

/** Differences of a result from its declared schema, and how the server handled them. */
export interface Difference {
  pointer: string;
  action: "cast" | "stripped" | "default" | "kept" | "replaced";
  declared?: string;
  got?: string;
  became?: string;
  detail?: string;
}

export interface Worker {
  name: string;
  kind: string;
  transport: string;
  state: "ready" | "saturated" | "draining" | "lost";
  slots?: number;
  inFlight: number;
  rate: number;
  p95?: number | null;
  errorRate: number;
  operations: number;
  host?: string;
  pid?: number;
  version?: string;
  since?: number;
  rates?: number[];
  lostAt?: number;
  reason?: string;
}

export interface MetricsRow {
  t: number;
  ok: number;
  failed: number;
  p50: number | null;
  p95: number | null;
  p99: number | null;
  inFlight: number;
  queued: number;
}

export type Metrics = { step: number } & { [Column in keyof MetricsRow]: MetricsRow[Column][] };

export interface Job {
  id: string;
  operationId: string;
  state: string;
  attempts: number;
  createdAt: number;
  startedAt?: number;
  endedAt?: number;
  owner?: string;
  code?: string;
  message?: string;
  progress?: { value: number; total?: number; message?: string };
}

export interface AuditEntry {
  at: number;
  caller?: string;
  operationId: string;
  protocol: string;
  outcome: string;
  code?: string;
  durationMs: number;
  requestId?: string;
}

/** An error of the server, RFC 9457. */
export interface Problem {
  type?: string;
  title?: string;
  status: number;
  detail: string;
  code: string;
  requestId?: string;
  operationId?: string;
  executed?: string;
  errors?: { pointer: string; detail: string }[];
  details?: JsonObject;
}

export interface Envelope {
  data: Json;
  meta: JsonObject & { source: string };
}
