type Cleanup = void | undefined | (() => unknown);
export function useEffect(effect: () => Cleanup, inputs?: unknown[]): void;
export function useLayoutEffect(effect: () => Cleanup, inputs?: unknown[]): void;
export function useMemo<T>(make: () => T, inputs: unknown[]): T;
export function useRef<T>(value: T): { current: T };
export function useState<T>(initial: T | (() => T)): [T, (next: T | ((now: T) => T)) => void];
