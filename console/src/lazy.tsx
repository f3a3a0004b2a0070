/** Screens, and parts of them, that are loaded when they are first shown. */

import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { UNREACHABLE } from "./api/client";
import { Failed, Loading } from "./components/Notice";
import { isLost, recoveries } from "./state/session";

const NOT_LOADED = { ...UNREACHABLE, detail: "this part of the page could not be loaded" };

export function lazy<P extends object>(load: () => Promise<ComponentType<P>>): ComponentType<P> {
  let loaded: ComponentType<P> | undefined;
  return function Lazy(props: P) {
    const [Screen, setScreen] = useState<ComponentType<P> | undefined>(() => loaded);
    const [isFailed, setFailed] = useState(false);
    const [attempt, setAttempt] = useState(0);
    useEffect(() => {
      if (loaded) return;
      let isHere = true;
      load().then(
        (found) => {
          loaded = found;
          if (isHere) setScreen(() => found);
        },
        () => isHere && setFailed(true),
      );
      return () => {
        isHere = false;
      };
    }, [attempt, recoveries.value]);
    if (Screen) return <Screen {...props} />;
    if (!isFailed) return <Loading />;
    // If the server responds, it has another version of the page without this file: load that version.
    const retry = () => (isLost.peek() ? setAttempt(attempt + 1) : location.reload());
    return <Failed problem={NOT_LOADED} retry={retry} />;
  };
}
