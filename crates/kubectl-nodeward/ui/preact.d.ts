export function h(type: unknown, props?: unknown, ...children: unknown[]): unknown;
export function render(node: unknown, parent: Element): void;
