/** Screens that are loaded when they are first shown. */

import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Loading } from "./components/Notice";

export function lazy(load: () => Promise<ComponentType>): ComponentType {
  let loaded: ComponentType | undefined;
  return function Lazy() {
    const [Screen, setScreen] = useState<ComponentType | undefined>(() => loaded);
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
    return Screen ? <Screen /> : <Loading />;
  };
}
