/** Screens, and parts of them, that are loaded when they are first shown. */

import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Loading } from "./components/Notice";

export function lazy<P extends object>(load: () => Promise<ComponentType<P>>): ComponentType<P> {
  let loaded: ComponentType<P> | undefined;
  return function Lazy(props: P) {
    const [Screen, setScreen] = useState<ComponentType<P> | undefined>(() => loaded);
    useEffect(() => {
      if (loaded) return;
      let isHere = true;
      void load().then((found) => {
        loaded = found;
        if (isHere) setScreen(() => found);
      });
      return () => {
        isHere = false;
      };
    }, []);
    return Screen ? <Screen {...props} /> : <Loading />;
  };
}
