/** Formatting of numbers, times and sizes. */

export function count(value: number): string {
  return Math.round(value).toLocaleString("en");
}

export function size(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1024 * 1024) return `${(bytes / 1024).toFixed(1)} KB`;
  return `${(bytes / 1024 / 1024).toFixed(1)} MB`;
}

export function duration(milliseconds: number): string {
  if (milliseconds < 10) return `${Number(milliseconds.toFixed(1))} ms`;
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  if (milliseconds < 60_000) return `${(milliseconds / 1000).toFixed(2)} s`;
  const minutes = Math.floor(milliseconds / 60_000);
  return minutes < 60
    ? `${minutes} min ${Math.round((milliseconds % 60_000) / 1000)} s`
    : `${(milliseconds / 3_600_000).toFixed(1)} h`;
}

const two = (value: number) => String(value).padStart(2, "0");

/** 10:42:07 */
export function clock(at: number): string {
  const date = new Date(at);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** 10:42:07.218 */
export function preciseClock(at: number): string {
  return `${clock(at)}.${String(Math.floor(new Date(at).getMilliseconds())).padStart(3, "0")}`;
}

/** Format a time; with the date if it is not today. */
export function moment(at: number): string {
  const date = new Date(at);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? clock(at) : `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(at)}`;
}

/** Format an age: 12 s, 14 h, 6 d. */
export function age(since: number, now = Date.now()): string {
  const seconds = Math.max(0, (now - since) / 1000);
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} d`;
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}
