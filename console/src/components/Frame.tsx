/** The frame of every screen: search, destinations, sources, identity and connection; a drawer on small windows. */

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { to } from "../addresses";
import { count, plural } from "../format";
import { helpOpen, openSearch } from "../keyboard";
import { route } from "../router";
import { assertive, polite } from "../state/announce";
import { jobs, running, workers } from "../state/live";
import { type Theme, theme } from "../state/preferences";
import { can, catalogue, connection, session, signIn, signOut, sources } from "../state/session";
import { Icon } from "./Icon";
import { LostBar } from "./LostBar";
import { Menu } from "./Menu";

export const drawer = signal(false);
/** The source of the current screen. */
export const shownSource = signal("");

export function Frame(props: { children: ComponentChildren }) {
  return (
    <>
      <a class="skip" href="#main">
        Skip to content
      </a>
      <TopBar />
      <div class={`scrim ${drawer.value ? "open" : ""}`} onClick={closeDrawer} />
      <Sidebar />
      <main class="main" id="main" tabIndex={-1}>
        <LostBar />
        {props.children}
      </main>
      <div class="hidden" role="status" aria-live="polite">
        {polite}
      </div>
      <div class="hidden" role="alert">
        {assertive}
      </div>
    </>
  );
}

/** Open the drawer and focus it; Escape, a choice or a click elsewhere closes it and the focus returns. */
function openDrawer(): void {
  drawer.value = true;
  requestAnimationFrame(() => document.querySelector<HTMLElement>(".side .find")?.focus());
}

function closeDrawer(): void {
  if (!drawer.value) return;
  drawer.value = false;
  document.querySelector<HTMLElement>('.mtop [aria-label="Menu"]')?.focus();
}

function TopBar() {
  const { screen, rest } = route.value;
  const name = screen === "op" ? rest.split(/[./]/)[0] : screen;
  return (
    <div class="mtop">
      {screen !== "operations" && (
        <a class="sq" href={to.operations()} aria-label="Back to operations">
          <Icon name="left" />
        </a>
      )}
      <b class="grow cut">{name}</b>
      <button type="button" class="sq" aria-label="Search" onClick={openSearch}>
        <Icon name="search" />
      </button>
      <button type="button" class="sq" aria-label="Menu" aria-expanded={drawer.value} onClick={openDrawer}>
        <Icon name="menu" />
      </button>
    </div>
  );
}

interface Destination {
  screen: string[];
  label: string;
  icon: string;
  href: string;
  count?: string | undefined;
}

function destinations(): Destination[] {
  const all: Destination[] = [
    {
      screen: ["operations", "op"],
      label: "Operations",
      icon: "list",
      href: to.operations(),
      count: count(catalogue.value?.operations.length ?? 0),
    },
  ];
  if (can("calls")) {
    const now = running.value.size;
    all.push({
      screen: ["calls", "traces", "compare"],
      label: "Calls",
      icon: "pulse",
      href: to.calls(),
      count: now ? `${now} running` : undefined,
    });
  }
  if (can("jobs"))
    all.push({
      screen: ["jobs"],
      label: "Jobs",
      icon: "jobs",
      href: to.jobs(),
      count: jobs.value ? String(jobs.value.length) : undefined,
    });
  if (can("workers"))
    all.push({
      screen: ["workers"],
      label: "Workers",
      icon: "workers",
      href: to.workers(),
      count: workers.value ? String(workers.value.length) : undefined,
    });
  if (can("metrics")) all.push({ screen: ["metrics"], label: "Metrics", icon: "chart", href: to.metrics() });
  if (can("audit")) all.push({ screen: ["audit"], label: "Audit", icon: "shield", href: to.audit() });
  return all;
}

function Sidebar() {
  const { screen, query } = route.value;
  const chosen = query.get("source") ?? shownSource.value;
  return (
    <nav
      class={`side ${drawer.value ? "open" : ""}`}
      aria-label="Main"
      onKeyDown={(event) => event.key === "Escape" && closeDrawer()}
    >
      <div class="brand">
        <Logo />
        operations
        <span class="m cut">{session.value?.server.name}</span>
      </div>
      <button
        type="button"
        class="find"
        onClick={() => {
          closeDrawer();
          openSearch();
        }}
      >
        <Icon name="search" small />
        Search
        <kbd>/</kbd>
      </button>
      <div class="scroll" onClick={closeDrawer}>
        {destinations().map((each) => (
          <a
            key={each.label}
            class={`nav ${each.screen.includes(screen) ? "on" : ""}`}
            href={each.href}
            aria-current={each.screen.includes(screen) ? "page" : undefined}
          >
            <Icon name={each.icon} />
            {each.label}
            {each.count && <span class="c">{each.count}</span>}
          </a>
        ))}
        {sources.value.length > 0 && <h2 class="h">Sources</h2>}
        {sources.value.map((source) => (
          <a
            key={source.name}
            class={`nav src ${source.name === chosen ? "on" : ""}`}
            href={to.operations({ source: source.name })}
            title={source.reason}
          >
            <span class={`dot ${source.state === "failed" ? "e" : ""}`} />
            <span class="cut">{source.name}</span>
            <span class="c">{source.state === "failed" ? <span class="err">failed</span> : count(source.count)}</span>
          </a>
        ))}
      </div>
      <Foot />
    </nav>
  );
}

export function Logo() {
  return (
    <svg width="18" height="18" viewBox="0 0 18 18" aria-hidden="true">
      <rect class="f1" width="18" height="18" rx="5" />
      <circle cx="6" cy="9" r="2.2" fill="#fff" />
      <path
        d="M8 9h6M11 6l3 3-3 3"
        stroke="#fff"
        stroke-width="1.6"
        fill="none"
        stroke-linecap="round"
        stroke-linejoin="round"
      />
    </svg>
  );
}

const THEMES: { id: Theme; label: string }[] = [
  { id: "system", label: "As the system" },
  { id: "light", label: "Light" },
  { id: "dark", label: "Dark" },
];

function Foot() {
  const identity = session.value?.identity;
  const name = identity?.id ?? "anonymous";
  const { state, latencyMs } = connection.value;
  return (
    <div class="foot">
      <Menu
        class="up"
        look=""
        button={
          <>
            <span class="ava">{initials(name)}</span>
            <span class="cut">{name}</span>
            <span class="hidden">account menu</span>
            {identity && <span class="t3 right">{plural(identity.scopes.length, "scope")}</span>}
          </>
        }
      >
        {(close) => (
          <>
            {THEMES.map((each) => (
              <button
                key={each.id}
                type="button"
                aria-pressed={theme.value === each.id}
                onClick={() => (theme.value = each.id)}
              >
                {each.label}
                {theme.value === each.id && <Icon name="check" small />}
              </button>
            ))}
            <button
              type="button"
              onClick={() => {
                close();
                helpOpen.value = true;
              }}
            >
              Keyboard <kbd>?</kbd>
            </button>
            {identity ? (
              <button type="button" onClick={() => void signOut()}>
                Sign out
              </button>
            ) : (
              <button
                type="button"
                onClick={() => {
                  close();
                  signIn.value = { open: true };
                }}
              >
                Sign in
              </button>
            )}
          </>
        )}
      </Menu>
      <div class="row t3">
        <span class={`dot ${state === "lost" ? "e" : state === "connecting" ? "o" : ""}`} />
        {state === "lost" ? (
          <span class="err">Connection lost</span>
        ) : state === "connecting" ? (
          "Connecting"
        ) : (
          "Connected"
        )}
        {latencyMs !== undefined && <span class="right n">{Math.max(1, Math.round(latencyMs))} ms</span>}
      </div>
    </div>
  );
}

function initials(name: string): string {
  const parts = name.split(/[^\p{L}\p{N}]+/u).filter(Boolean);
  const letters = parts.length > 1 ? parts.slice(0, 2).map((part) => part[0]) : [...(parts[0] ?? "?")].slice(0, 2);
  return letters.join("").toUpperCase();
}
