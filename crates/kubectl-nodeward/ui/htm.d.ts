declare const htm: { bind(h: unknown): (parts: TemplateStringsArray, ...values: any[]) => any };
export default htm;
