// What the server sends: see the Rust types in src/ui. A field that is unknown or empty is absent or null; times are RFC 3339 in UTC.

export interface State {
  at: string;                       // of this state
  source: {
    cluster: string;                // context name, or address
    user?: string;
    snapshot?: string;              // set when shown from a file: the moment at which it was taken; then all ages count from it, not from now
    stale?: { since: string; message: string };  // the API server cannot be reached; since then nothing is newer
    version: string;                // of the plugin
  };
  components: Component[];
  groupings: { name: string; label: string }[]; // e.g. {name:"pool",label:"node pool"}, {name:"zone",…}, {name:"nodeGroup",…}: only those that exist
  nodes: Record<string, FleetNode>;
  drains: Record<string, Drain>;        // by node
  budgets: Record<string, BudgetLocks>; // by namespace/name; only those that somebody holds or waits for
  nodeGroups: { away?: {group:string; ticket:number; node:string; since:string}[]; waiting?: {node:string; ticket?:number; since?:string; message:string}[] };
  durations?: { medianSeconds: number; drains: number };  // how long this cluster's drains took
  healthChecks: Record<string, HealthCheck>;
  cephClusters: Record<string, CephCluster>;  // by namespace
  log: Record<string, LogLine>;         // by uid, at most 500
  unread: { text: string; isHidden: boolean }[];           // what may not be read or is not installed: shown in full somewhere, counted always
}

export type NodeState = "Ready" | "Cordoned" | "Waiting" | "Draining" | "Drained" | "Recovering" | "Blocked" | "Unhealthy" | "Remediating" | "NotReady";
// Waiting: its drain waits for its turn. Recovering: back, its pods return. Blocked: its drain is stuck. Unhealthy: counting down to remediation.

// It goes on only when a person acts; something is done, or will be; it waits for others, as designed; all is well.
export type Severity = "NeedsPerson" | "Acts" | "Waits" | "Fine";

export interface FleetNode {
  state: NodeState;
  ready: boolean; cordoned: boolean;
  groups: Record<string, string>;   // grouping name -> value, e.g. {pool:"workers", zone:"eu-1a"}
  since?: string;                   // since when it is in this state
  until?: string;                   // when something happens by itself
  why?: string;                     // one or two sentences: why it is so
  commands?: Command[];             // what a person can type; the first is the most useful one
  severity: Severity;
}
export interface Command { label: string; command: string }  // label: what it does, e.g. "Show what blocks it"

export interface Component { name: string; state: "Leading"|"NotPlanning"|"Ready"|"NotLeading"|"NotReady"|"NotInstalled"; version?: string; namespace: string; ready?: number; replicas?: number; leader?: string; renewed?: string; text: string; style: Style }

export interface Drain { node: string; phase?: "Queued"|"Granted"|"Draining"|"Drained"|"Recovering"|"Released"|"Suspect"|"Failed"; word: string /* phase in one word, also Ending, Planned, Requested */; ticket?: number; requesters?: string[]; purpose?: string;
  evict: string; fallback: string; dryRun?: boolean; ending?: boolean; askedAt?: string; startedAt?: string; grantedAt?: string; drainedAt?: string; deadline?: string;
  pods?: { total:number; gone:number; evicting:number; retained:number; waiting:number };
  holds?: { pdb: {namespace:string; name:string}; disruptions: number; pods: string[] }[];
  blockedBy?: { reason: string; pdb?: string; pod?: string; node?: string; message: string }[];  // .node: the node whose drain it waits for
  message?: string; recoveringSince?: string;
  obstacles?: string[];             // what stands in its way, each in a sentence
  turn?: string;                    // how long until its turn, as far as that can be told: a sentence
  commands?: Command[] }

export interface BudgetLocks { pdb: string; status?: { disruptionsAllowed:number; currentHealthy:number; desiredHealthy:number; expectedPods:number };
  held?: { node:string; ticket:number; state:string; disruptions:number; pods:string[]; retained?:string[]; since:string }[];
  waiting?: { node:string; ticket:number; disruptions:number; since:string }[];
  ownerHolds?: { name?:string; pdb:string; disruptions?:number; reason:string; until?:string; phase?:string }[] }

export interface HealthCheck { name:string; phase?: "Enabled"|"Remediating"|"Paused"|"Disabled"; healthy?:number; observed?:number; minHealthy?: string; maxUnhealthy?: string; remediating?: string[]; reason?: string; stopped?: { reason:string; detail:string; until?:string; nodes:string[] }[]; dryRun?: boolean;
  nodes?: { node:string; sentence:string; condition?: {type:string; status:string; since:string; expires:string}; step?: {number:number; of:number; remediation:string; started?:string; ends?:string; timedOut?:string; conditions?:string[]}; next?: {number:number; template:string; at?:string}; stoppedBy?: {reason:string; detail:string; until?:string}[] }[] }  // nodes that are not simply healthy

export interface CephCluster { namespace:string; name:string; unreadable?: string;  // either that, or:
  style: Style; sentence: string;   // open, closed around which domain and why, clean or not and how fresh
  state?: { disruptions: "Open"|"Closed"|"Closing"|"Unmanaged"; exemptDomain?: string; since: string; reason: string; failureDomainType?: string; isClean?: boolean; statisticsFreshSince?: string };
  domains: { name:string; nodes:string[]; down:number[]; exempt:boolean; noout?:string }[];
  conditions: { sentence:string; since:string }[]; commands?: Command[] }

export interface LogLine { at?: string; component: string; kind: string; name: string /* namespace/name or name */; node?: string; reason: string; note: string; warning: boolean; forced: boolean /* overrides and forced acts stand out */; count?: number }

export type Style = "Plain"|"Strong"|"Good"|"Warning"|"Bad"|"Faint";

type Section = "nodes" | "drains" | "budgets" | "healthChecks" | "cephClusters" | "log";

export interface Change {   // only what changed
  at: string;
  set?: { [section in Section]?: Record<string, any> };  // entries to put
  drop?: { [section in Section]?: string[] };            // keys to remove
  whole?: Partial<Pick<State, "source"|"components"|"groupings"|"nodeGroups"|"durations"|"unread">>;  // values to replace
}

// All that `kubectl nodeward why NODE` prints, in the same order, to be laid out as HTML: the page adds no sentence of its own.
export interface NodeView { name: string; at: string; blocks: Block[]; events: LogLine[] }
export type Block =
  | { heading: string }
  | { text: string; style: Style }
  | { point: string; style: Style }
  | { field: string; value: string; style: Style }      // field "" continues the field before
  | { command: string }                                  // to be copied
  | { table: { columns: string[]; rows: ({ cells: {text:string; style:Style}[] } | { section: {text:string; style:Style}; about: {text:string; style:Style} })[] } };
