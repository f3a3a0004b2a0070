/** The page's icons, drawn by path. */

import type { JSX } from "preact";

const PATHS: Record<string, JSX.Element> = {
  list: <path d="M2.5 4h11M2.5 8h11M2.5 12h7" />,
  pulse: <path d="M2 8h3l2-5 3 10 2-5h2" />,
  jobs: (
    <>
      <rect x="2.5" y="3" width="11" height="4" rx="1" />
      <rect x="2.5" y="9" width="11" height="4" rx="1" />
    </>
  ),
  workers: (
    <>
      <circle cx="8" cy="4" r="2" />
      <circle cx="3.5" cy="12" r="2" />
      <circle cx="12.5" cy="12" r="2" />
      <path d="m7 5.8-2.6 4.4M9 5.8l2.6 4.4" />
    </>
  ),
  chart: <path d="M2.5 13.5v-11M2.5 13.5h11M5 10l2.5-3 2 2 3.5-4.5" />,
  shield: <path d="M8 2 3 4v4c0 3 2.2 5 5 6 2.8-1 5-3 5-6V4z" />,
  search: (
    <>
      <circle cx="7" cy="7" r="4.5" />
      <path d="m10.5 10.5 3 3" />
    </>
  ),
  right: <path d="m6 4 4 4-4 4" />,
  left: <path d="m10 4-4 4 4 4" />,
  down: <path d="m4 6 4 4 4-4" />,
  up: <path d="m4 10 4-4 4 4" />,
  close: <path d="m4.5 4.5 7 7M11.5 4.5l-7 7" />,
  plus: <path d="M8 3.5v9M3.5 8h9" />,
  check: <path d="m3.5 8.5 3 3 6-7" />,
  error: (
    <>
      <circle cx="8" cy="8" r="6" />
      <path d="M8 5v3.5M8 11v.01" />
    </>
  ),
  warning: <path d="M8 2.5 14 13H2zM8 6.5v3M8 11.3v.01" />,
  copy: (
    <>
      <rect x="5.5" y="5.5" width="8" height="8" rx="1.5" />
      <path d="M3.5 10.5h-1v-8h8v1" />
    </>
  ),
  download: <path d="M8 2.5v8m-3-3 3 3 3-3M3 13.5h10" />,
  filter: <path d="M2.5 4h11l-4.2 5v4l-2.6-1.5V9z" />,
  again: <path d="M13 8a5 5 0 1 1-1.5-3.6L13 6M13 2.5V6H9.5" />,
  star: <path d="m8 2.5 1.7 3.5 3.8.5-2.8 2.6.7 3.8L8 11.1l-3.4 1.8.7-3.8L2.5 6.5l3.8-.5z" />,
  link: (
    <path d="M6.5 9.5a3 3 0 0 0 4.2 0l2-2a3 3 0 0 0-4.2-4.2l-.8.8M9.5 6.5a3 3 0 0 0-4.2 0l-2 2a3 3 0 0 0 4.2 4.2l.8-.8" />
  ),
  pause: <path d="M5.5 3.5v9M10.5 3.5v9" />,
  play: <path d="M5 3.5v9l7-4.5z" />,
  stop: <rect x="4" y="4" width="8" height="8" rx="1" />,
  menu: <path d="M2.5 5h11M2.5 11h11" />,
  more: <path d="M4 8h.01M8 8h.01M12 8h.01" stroke-width="2.2" />,
  file: <path d="M4 2.5h5l3 3v8H4zM9 2.5v3h3" />,
  query: <circle cx="8" cy="8" r="4.5" />,
  mutation: <path d="M8 2.8 13.2 8 8 13.2 2.8 8z" fill="currentColor" fill-opacity=".16" />,
  subscription: <path d="M2 6c2-2 4-2 6 0s4 2 6 0M2 10.5c2-2 4-2 6 0s4 2 6 0" />,
};

export function Icon(props: { name: string; small?: boolean; class?: string }) {
  const { name, small, class: more } = props;
  return (
    <svg class={`i${small ? " s" : ""}${more ? ` ${more}` : ""}`} viewBox="0 0 16 16" aria-hidden="true">
      {PATHS[name]}
    </svg>
  );
}
