//! What the ServiceAccounts may and may not do, asked of the API server's own authorizer.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use kube::api::{Api, PostParams};
use nodeward_testkit::helm::Release;
use nodeward_testkit::names::unique;
use nodeward_testkit::wait::{self, secs};
use nodeward_testkit::{ControlPlane, bulk};
use serde_json::json;

use crate::{FOREIGN_NAMESPACE, LEASES_NAMESPACE, shared};

/// A right a line: verb, `RESOURCE.GROUP/SUBRESOURCE`, `NAMESPACE/NAME` (`-` is all namespaces), and whether the first user has
/// it, and the second.
type Rights<'a> = &'a str;

#[tokio::test]
async fn drain_keeper_has_the_rights_it_needs_alone() -> Result<()> {
    let (plane, namespace) = shared("rights").await?;
    let real = Release::new(&unique("real"), &namespace).values(json!({ "drainKeeper": {
        "enabled": true,
        "deployment": { "enabled": false },
        "readManagedUpgradeConfigMap": { "enabled": true },
        "config": { "optOuts": { "namespaces": { "selector": { "team": "a" } } }, "surge": { "enabled": true } },
    } }));
    let dry = Release::new(&unique("dry"), &namespace).values(json!({ "drainKeeper": {
            "enabled": true, "deployment": { "enabled": false }, "dryRun": true, "leases": { "rbac": "none" },
        } }));
    let own = namespace.as_str();
    let table = format!(
        "
        watch             nodes                                                 -                                                    yes  yes
        patch             nodes                                                 -                                                    yes  no
        patch             nodes/status                                          -                                                    yes  no
        delete            nodes                                                 -                                                    no   no
        update            nodes                                                 -                                                    no   no
        list              pods                                                  -                                                    yes  yes
        patch             pods                                                  -                                                    yes  no
        delete            pods                                                  -                                                    yes  no
        deletecollection  pods                                                  -                                                    no   no
        create            pods                                                  -                                                    no   no
        create            pods/exec                                             -                                                    no   no
        create            pods/eviction                                         -                                                    yes  no
        watch             deployments.apps                                      -                                                    yes  no
        patch             deployments.apps                                      -                                                    yes  no
        update            deployments.apps                                      -                                                    no   no
        create            deployments.apps                                      -                                                    no   no
        patch             deployments.apps/scale                                -                                                    no   no
        list              replicasets.apps                                      -                                                    yes  no
        patch             replicasets.apps                                      -                                                    no   no
        watch             persistentvolumeclaims                                -                                                    yes  no
        list              poddisruptionbudgets.policy                           -                                                    yes  yes
        patch             poddisruptionbudgets.policy/status                    -                                                    yes  no
        patch             poddisruptionbudgets.policy                           -                                                    no   no
        watch             customresourcedefinitions.apiextensions.k8s.io        -                                                    yes  yes
        list              upgradeconfigs.upgrade.managed.openshift.io           -                                                    yes  yes
        list              machineconfigpools.machineconfiguration.openshift.io  -                                                    yes  yes
        list              clusterversions.config.openshift.io                   -                                                    yes  yes
        list              plans.upgrade.cattle.io                               -                                                    yes  yes
        list              machinedrainrules.cluster.x-k8s.io                    -                                                    yes  yes
        list              clusters.cluster.x-k8s.io                             -                                                    yes  yes
        create            events.events.k8s.io                                  default                                              yes  no
        patch             events.events.k8s.io                                  default                                              yes  no
        get               secrets                                               {own}                                                no   no
        get               leases.coordination.k8s.io                            {own}/drain-keeper                                   yes  no
        patch             leases.coordination.k8s.io                            {own}/drain-keeper                                   yes  no
        update            leases.coordination.k8s.io                            {own}/drain-keeper                                   no   no
        patch             leases.coordination.k8s.io                            {own}/drain-keeper-dry-run                           yes  yes
        patch             leases.coordination.k8s.io                            {own}/another                                        no   no
        create            leases.coordination.k8s.io                            {own}                                                yes  yes
        create            leases.coordination.k8s.io                            kube-system                                          no   no
        watch             configmaps                                            {FOREIGN_NAMESPACE}/managed-upgrade-operator-config  yes  no
        watch             configmaps                                            {FOREIGN_NAMESPACE}/another                          no   no
        get               configmaps                                            {own}                                                no   no
        watch   configmaps   {own}/nodeward-pause  yes  yes
        patch   configmaps   {own}/nodeward-pause  no   no
        patch   pods/status  {own}  yes  no
        list              nodedrains.nodeward.dev                               -                                                    yes  yes
        watch             namespaces                                            -                                                    yes  no
        patch             namespaces                                            -                                                    no   no
        watch             drainledgers.nodeward.dev                             -                                                    yes  yes
        watch             disruptionholds.nodeward.dev                          -                                                    yes  yes
        patch             nodedrains.nodeward.dev                               -                                                    no   no
        patch             drainledgers.nodeward.dev                             -                                                    no   no
        watch             nodehealthchecks.remediation.medik8s.io               -                                                    yes  yes
        patch             nodehealthchecks.remediation.medik8s.io               -                                                    no   no
        watch             leases.coordination.k8s.io                            {LEASES_NAMESPACE}                                   yes  no
        update            leases.coordination.k8s.io                            {LEASES_NAMESPACE}/node-n1                           no   no
        "
    );
    expect(plane, "drain-keeper", [&real, &dry], &table).await
}

#[tokio::test]
async fn drain_lock_has_the_rights_it_needs_alone() -> Result<()> {
    let (plane, namespace) = shared("rights").await?;
    let with = |values: serde_json::Value| {
        let mut all = json!({
            "crds": { "enabled": false },
            "drainLock": { "enabled": true, "deployment": { "enabled": false } },
        });
        for (key, value) in values.as_object().into_iter().flatten() {
            all["drainLock"][key] = value.clone();
        }
        all
    };
    // The namespace of the leases exists: the role is made without a word of the user's.
    let real = Release::new(&unique("real"), &namespace).values(with(json!({})));
    let dry = Release::new(&unique("dry"), &namespace).values(with(json!({ "dryRun": true })));
    let own = namespace.as_str();
    let hook = format!("{}-nodeward-drain-lock", real.name());
    let dry_hook = format!("{}-nodeward-drain-lock-dry-run", dry.name());
    let (hook, dry_hook, of_dry_run) = (hook.as_str(), dry_hook.as_str(), "drain-lock-webhook-cert-dry-run");
    let table = format!(
        "
        watch   nodes                                                         -                              yes  yes
        get     nodes                                                         -                              yes  yes
        patch   nodes                                                         -                              yes  no
        patch   nodes/status                                                  -                              yes  no
        update  nodes                                                         -                              no   no
        delete  nodes                                                         -                              no   no
        list    pods                                                          -                              yes  yes
        patch   pods                                                          -                              no   no
        delete  pods                                                          -                              no   no
        create  pods                                                          -                              no   no
        create  pods/exec                                                     -                              no   no
        create  pods/eviction                                                 -                              yes  no
        get     replicasets.apps                                              -                              yes  yes
        get     deployments.apps/scale                                        -                              yes  yes
        patch   deployments.apps/scale                                        -                              no   no
        get     statefulsets.apps/scale                                       -                              yes  yes
        list    persistentvolumes                                             -                              yes  yes
        watch   namespaces                                                    -                              yes  yes
        watch   machinedrainrules.cluster.x-k8s.io                            -                              yes  yes
        watch   clusters.cluster.x-k8s.io                                     -                              yes  yes
        patch   persistentvolumes                                             -                              no   no
        get     poddisruptionbudgets.policy                                   -                              yes  yes
        watch   poddisruptionbudgets.policy                                   -                              yes  yes
        patch   poddisruptionbudgets.policy                                   -                              yes  no
        patch   poddisruptionbudgets.policy/status                            -                              yes  no
        delete  poddisruptionbudgets.policy                                   -                              no   no
        watch   nodedrains.nodeward.dev                                       -                              yes  yes
        create  nodedrains.nodeward.dev                                       -                              yes  no
        patch   nodedrains.nodeward.dev                                       -                              yes  no
        delete  nodedrains.nodeward.dev                                       -                              yes  no
        patch   nodedrains.nodeward.dev/status                                -                              yes  no
        watch   drainledgers.nodeward.dev                                     -                              yes  yes
        create  drainledgers.nodeward.dev                                     -                              yes  no
        patch   drainledgers.nodeward.dev                                     -                              yes  no
        delete  drainledgers.nodeward.dev                                     -                              no   no
        watch   nodehealthchecks.remediation.medik8s.io                       -                              yes  yes
        patch   nodehealthchecks.remediation.medik8s.io                       -                              no   no
        watch   customresourcedefinitions.apiextensions.k8s.io                -                              yes  yes
        watch   disruptionholds.nodeward.dev                                  -                              yes  yes
        patch   disruptionholds.nodeward.dev                                  -                              no   no
        patch   disruptionholds.nodeward.dev/status                           -                              yes  no
        create  events.events.k8s.io                                          default                        yes  no
        create  selfsubjectreviews.authentication.k8s.io                      -                              yes  yes
        create  subjectaccessreviews.authorization.k8s.io                     -                              yes  yes
        watch   secrets                                                       {own}/drain-lock-webhook-cert  yes  no
        update  secrets                                                       {own}/drain-lock-webhook-cert  yes  no
        update  secrets                                                       {own}/{of_dry_run}             no   yes
        delete  secrets                                                       {own}/{of_dry_run}             no   yes
        delete  secrets                                                       {own}/drain-lock-webhook-cert  no   no
        create  secrets                                                       {own}                          yes  yes
        get     secrets                                                       {own}/another                  no   no
        list    secrets                                                       {own}                          no   no
        create  secrets                                                       default                        no   no
        get     validatingwebhookconfigurations.admissionregistration.k8s.io  -/{hook}                       yes  no
        patch   validatingwebhookconfigurations.admissionregistration.k8s.io  -/{hook}                       yes  no
        patch   validatingwebhookconfigurations.admissionregistration.k8s.io  -/{dry_hook}                   no   yes
        patch   validatingwebhookconfigurations.admissionregistration.k8s.io  -/another                      no   no
        patch   leases.coordination.k8s.io                                    {own}/drain-lock               yes  no
        patch   leases.coordination.k8s.io                                    {own}/drain-lock-dry-run       yes  yes
        patch   leases.coordination.k8s.io                                    {own}/drain-keeper             no   no
        watch   leases.coordination.k8s.io                                    {LEASES_NAMESPACE}             yes  yes
        create  leases.coordination.k8s.io                                    {LEASES_NAMESPACE}             yes  no
        update  leases.coordination.k8s.io                                    {LEASES_NAMESPACE}/node-n1     yes  no
        delete  leases.coordination.k8s.io                                    {LEASES_NAMESPACE}/node-n1     yes  no
        delete  leases.coordination.k8s.io                                    kube-system                    no   no
        get     configmaps                                                    {own}                          no   no
        watch   configmaps   {own}/nodeward-pause  yes  yes
        patch   configmaps   {own}/nodeward-pause  no   no
        patch   pods/status  {own}  yes  no
        "
    );
    expect(plane, "drain-lock", [&real, &dry], &table).await
}

/// The first has every right that a value can grant, the second is without all that a value can take away.
#[tokio::test]
async fn rare_rights_follow_their_values() -> Result<()> {
    let (plane, namespace) = shared("rights").await?;
    let all = Release::new(&unique("all"), &namespace).values(json!({
        "crds": { "enabled": false },
        "drainLock": {
            "enabled": true, "deployment": { "enabled": false },
        },
    }));
    let few = Release::new(&unique("few"), &namespace).values(json!({
        "crds": { "enabled": false },
        "drainLock": {
            "enabled": true, "deployment": { "enabled": false }, "medik8sLease": { "enabled": false },
            "webhook": { "url": "https://192.0.2.1:9443", "certificate": { "from": "secret", "secretName": "tls" } },
        },
    }));
    let own = namespace.as_str();
    let table = format!(
        "
        delete            pods                                -                              no   no
        deletecollection  pods                                -                              no   no
        patch             poddisruptionbudgets.policy/status  -                              yes  yes
        update            poddisruptionbudgets.policy/status  -                              no   no
        list              leases.coordination.k8s.io          {LEASES_NAMESPACE}             yes  no
        get               secrets                             {own}/drain-lock-webhook-cert  yes  no
        create            secrets                             {own}                          yes  no
        create            pods/eviction                       -                              yes  yes
        "
    );
    expect(plane, "drain-lock", [&all, &few], &table).await
}

/// Who has the role `edit` in one namespace, and who has the chart's role for those who run the cluster.
#[tokio::test]
async fn owners_and_administrators_cannot_evict() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let client = plane.client().await?;
    let apps = unique("apps");
    plane.namespace(&apps).await?;
    let values = json!({
        "crds": { "enabled": false },
        "drainLock": { "enabled": true, "deployment": { "enabled": false } },
    });
    let release = Release::new(&unique("people"), &unique("rights")).values(values);
    release.install(plane).await?;
    let (owner, administrator) = (unique("owner"), unique("administrator"));
    let of_owner: RoleBinding = serde_json::from_value(json!({
        "metadata": { "name": owner, "namespace": apps },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": owner }],
    }))?;
    let role = format!("{}-nodeward-admin", release.name());
    let of_administrator: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": { "name": administrator },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": administrator }],
    }))?;
    bulk::create(&client, [of_owner]).await?;
    bulk::create(&client, [of_administrator]).await?;
    let within = apps.as_str();
    let groups = format!("{}-nodeward-drain-lock", release.name());
    let table = format!(
        "
        create  disruptionholds.nodeward.dev    {within}     yes  yes
        delete  disruptionholds.nodeward.dev    {within}     yes  yes
        create  disruptionholds.nodeward.dev    default      no   yes
        patch   poddisruptionbudgets.policy     {within}     yes  no
        list    nodedrains.nodeward.dev         -            no   yes
        create  nodedrains.nodeward.dev         -            no   yes
        patch   nodedrains.nodeward.dev         -            no   yes
        delete  nodedrains.nodeward.dev         -            no   yes
        list    drainledgers.nodeward.dev       -            no   yes
        patch   drainledgers.nodeward.dev       -            no   no
        patch   nodedrains.nodeward.dev/status  -            no   no
        list    pods                            -            no   yes
        list    configmaps                      -            no   no
        list    configmaps                      -/nodeward-ceph-pdb  no  yes
        list    configmaps                      -/nodeward-pause     no  yes
        patch   configmaps                      -/nodeward-pause     no  no
        list    configmaps                      -/{groups}   no   yes
        create  pods/eviction                   kube-system  no   no
        patch   nodes                           -            no   no
        "
    );
    exactly(plane, [&owner, &administrator], &table).await?;
    release.uninstall(plane).await
}

#[tokio::test]
async fn health_check_has_the_rights_it_needs_alone() -> Result<()> {
    let (plane, namespace) = shared("rights").await?;
    plane.namespace("openshift-etcd").await?;
    let with = |values: serde_json::Value| {
        let mut all = json!({
            "crds": { "enabled": false },
            "healthCheck": { "enabled": true, "deployment": { "enabled": false } },
        });
        for (key, value) in values.as_object().into_iter().flatten() {
            all["healthCheck"][key] = value.clone();
        }
        all
    };
    let group = format!("{}.example.com", unique("fence"));
    let aggregated = add_aggregated_role(plane).await?;
    let template = json!({ "apiVersion": "a/v1", "kind": "FenceTemplate", "namespace": "fence", "name": "reboot" });
    let values = json!({
        "default": { "enabled": true, "remediationTemplate": template },
        "ceph": { "namespaces": [FOREIGN_NAMESPACE] },
        "remediators": [{ "apiGroup": group, "templates": ["fencetemplates"], "remediations": ["fences"] }],
    });
    let real = Release::new(&unique("real"), &namespace).values(with(values));
    let dry = Release::new(&unique("dry"), &namespace).values(with(json!({ "dryRun": true })));
    let own = namespace.as_str();
    let hook = format!("{}-nodeward-health-check", real.name());
    // What a remediator's own role grants is granted to every health-check, to a dry run too.
    let table = format!(
        "
        watch   nodes                                                         -                                          yes  yes
        patch   nodes                                                         -                                          yes  no
        update  nodes                                                         -                                          no   no
        patch   nodes/status                                                  -                                          no   no
        delete  nodes                                                         -                                          no   no
        list    pods                                                          -                                          no   no
        delete  pods                                                          -                                          no   no
        create  pods/eviction                                                 default                                    no   no
        list    pods                                                          openshift-etcd                             yes  yes
        watch   poddisruptionbudgets.policy                                   openshift-etcd                             yes  yes
        list    poddisruptionbudgets.policy                                   default                                    no   no
        watch   nodehealthchecks.remediation.medik8s.io                       -                                          yes  yes
        patch   nodehealthchecks.remediation.medik8s.io                       -                                          yes  no
        patch   nodehealthchecks.remediation.medik8s.io/status                -                                          no   no
        update  nodehealthchecks.remediation.medik8s.io                       -                                          no   no
        update  nodehealthchecks.remediation.medik8s.io/status                -                                          yes  no
        create  nodehealthchecks.remediation.medik8s.io                       -                                          yes  no
        delete  nodehealthchecks.remediation.medik8s.io                       -                                          no   no
        list    nodedrains.nodeward.dev                                       -                                          yes  yes
        patch   nodedrains.nodeward.dev                                       -                                          no   no
        list    drainledgers.nodeward.dev                                     -                                          no   no
        watch   nodemaintenances.nodemaintenance.medik8s.io                   -                                          yes  yes
        watch   machines.machine.openshift.io                                 -                                          yes  yes
        delete  machines.machine.openshift.io                                 -                                          no   no
        list    machinehealthchecks.machine.openshift.io                      -                                          yes  yes
        watch   customresourcedefinitions.apiextensions.k8s.io                -                                          yes  yes
        list    clusterversions.config.openshift.io                           -                                          yes  yes
        watch   infrastructures.config.openshift.io                           -                                          yes  yes
        create  events.events.k8s.io                                          default                                    yes  no
        get     leases.coordination.k8s.io                                    openshift-workload-availability/e1f13584.medik8s.io  yes  yes
        list    leases.coordination.k8s.io                                    kube-system                                no   no
        get     leases.coordination.k8s.io                                    kube-system/another                        no   no
        watch   leases.coordination.k8s.io                                    {LEASES_NAMESPACE}                         yes  yes
        create  leases.coordination.k8s.io                                    {LEASES_NAMESPACE}                         yes  no
        update  leases.coordination.k8s.io                                    {LEASES_NAMESPACE}                         yes  no
        delete  leases.coordination.k8s.io                                    {LEASES_NAMESPACE}                         yes  no
        patch   leases.coordination.k8s.io                                    {own}/health-check                         yes  no
        patch   leases.coordination.k8s.io                                    {own}/health-check-dry-run                 yes  yes
        patch   leases.coordination.k8s.io                                    {own}/another                              no   no
        watch   configmaps   {own}/nodeward-pause  yes  yes
        patch   configmaps   {own}/nodeward-pause  no   no
        patch   pods/status  {own}  yes  no
        get     leases.coordination.k8s.io                                    {own}/ceph-pdb                             yes  no
        patch   leases.coordination.k8s.io                                    {own}/ceph-pdb                             no   no
        watch   configmaps                                                    {FOREIGN_NAMESPACE}/nodeward-ceph-pdb      yes  no
        watch   configmaps                                                    {FOREIGN_NAMESPACE}/another                no   no
        patch   configmaps                                                    {FOREIGN_NAMESPACE}/nodeward-ceph-pdb      no   no
        create  namespaces                                                    -                                          no   no
        watch   configmaps                                                    {own}/nodeward-health-check-default        yes  no
        create  configmaps                                                    {own}                                      yes  no
        get     configmaps                                                    {own}/another                              no   no
        get     secrets                                                       {own}/health-check-webhook-cert            yes  no
        update  secrets                                                       {own}/health-check-webhook-cert            yes  no
        get     secrets                                                       {own}/another                              no   no
        list    secrets                                                       -                                          no   no
        patch   validatingwebhookconfigurations.admissionregistration.k8s.io  -/{hook}                                   yes  no
        patch   validatingwebhookconfigurations.admissionregistration.k8s.io  -/another                                  no   no
        get     fencetemplates.{group}                                        fence                                      yes  no
        create  fences.{group}                                                fence                                      yes  no
        delete  fences.{group}                                                fence                                      yes  no
        create  fencetemplates.{group}                                        fence                                      no   no
        get     resettemplates.{aggregated}                                   reset                                      yes  yes
        create  resets.{aggregated}                                           reset                                      yes  yes
        create  resettemplates.{aggregated}                                   reset                                      no   no
        patch   clusterroles.rbac.authorization.k8s.io                        -                                          no   no
        "
    );
    expect(plane, "health-check", [&real, &dry], &table).await
}

#[tokio::test]
async fn ceph_pdb_has_the_rights_it_needs_alone() -> Result<()> {
    let (plane, namespace) = shared("rights").await?;
    let (ceph, other) = (unique("rook-ceph"), unique("other"));
    plane.namespace(&ceph).await?;
    let with = |dry_run: bool, credentials: serde_json::Value| {
        json!({
            "cephPdb": {
                "enabled": true,
                "dryRun": dry_run,
                // A Role cannot be made in a namespace that is not there.
                "namespaces": [ceph, other],
                "credentials": credentials,
                "deployment": { "enabled": false },
            },
        })
    };
    let real = Release::new(&unique("real"), &namespace).values(with(false, json!({ "allowAdminKey": true })));
    let dry = Release::new(&unique("dry"), &namespace).values(with(true, json!({ "secretName": "ceph-user" })));
    let own = namespace.as_str();
    let table = format!(
        "
        watch   nodes                                            -                                 yes  yes
        patch   nodes                                            -                                 no   no
        watch   nodedrains.nodeward.dev                          -                                 yes  yes
        watch   customresourcedefinitions.apiextensions.k8s.io   -                                 yes  yes
        watch   deployments.apps                                 -                                 no   no
        watch   deployments.apps                                 {ceph}                            yes  yes
        patch   deployments.apps                                 {ceph}                            no   no
        watch   cephclusters.ceph.rook.io                        {ceph}                            yes  yes
        watch   cephfilesystems.ceph.rook.io                     {ceph}                            yes  yes
        watch   cephobjectstores.ceph.rook.io                    {ceph}                            yes  yes
        watch   cephrbdmirrors.ceph.rook.io                      {ceph}                            yes  yes
        watch   cephnfses.ceph.rook.io                           {ceph}                            yes  yes
        patch   cephclusters.ceph.rook.io                        {ceph}                            no   no
        patch   cephclusters.ceph.rook.io/status                 {ceph}                            no   no
        update  cephclusters.ceph.rook.io/finalizers             {ceph}                            yes  no
        watch   cephclusters.ceph.rook.io                        {own}                             no   no
        watch   pods                                             {ceph}                            yes  yes
        delete  pods                                             {ceph}                            no   no
        create  pods/eviction                                    {ceph}                            no   no
        watch   pods                                             -                                 yes  yes
        watch   poddisruptionbudgets.policy                      {ceph}                            yes  yes
        create  poddisruptionbudgets.policy                      {ceph}                            yes  no
        patch   poddisruptionbudgets.policy                      {ceph}                            yes  no
        update  poddisruptionbudgets.policy                      {ceph}                            yes  no
        delete  poddisruptionbudgets.policy                      {ceph}                            yes  no
        patch   poddisruptionbudgets.policy/status               {ceph}                            no   no
        watch   poddisruptionbudgets.policy                      -                                 no   no
        patch   poddisruptionbudgets.policy                      {own}                             no   no
        watch   poddisruptionbudgets.policy                      {other}                           no   no
        watch   configmaps                                       {ceph}/rook-ceph-pdbstatemap      yes  yes
        patch   configmaps                                       {ceph}/rook-ceph-pdbstatemap      yes  no
        watch   configmaps                                       {ceph}/nodeward-ceph-pdb          yes  yes
        patch   configmaps                                       {ceph}/nodeward-ceph-pdb          yes  no
        create  configmaps                                       {ceph}                            yes  no
        watch   configmaps                                       {ceph}/rook-ceph-mon-endpoints    yes  yes
        patch   configmaps                                       {ceph}/rook-ceph-mon-endpoints    no   no
        watch   configmaps                                       {ceph}/rook-config-override       no   no
        watch   secrets                                          {ceph}/rook-ceph-config           yes  yes
        watch   secrets                                          {ceph}/rook-ceph-client-nodeward  yes  no
        watch   secrets                                          {ceph}/rook-ceph-mon              yes  no
        watch   secrets                                          {ceph}/ceph-user                  no   yes
        watch   secrets                                          {ceph}                            no   no
        patch   secrets                                          {ceph}/rook-ceph-config           no   no
        get     secrets                                          {own}                             no   no
        patch   leases.coordination.k8s.io                       {own}/ceph-pdb                    yes  no
        patch   leases.coordination.k8s.io                       {own}/ceph-pdb-dry-run            yes  yes
        create  events.events.k8s.io                             {ceph}                            yes  no
        create  events.events.k8s.io                             default                           yes  no
        "
    );
    expect(plane, "ceph-pdb", [&real, &dry], &table).await
}

/// Makes the role that a remediator brings; gives its API group. It stays: another one that goes while a release does would let
/// the aggregation controller create the release's role anew.
async fn add_aggregated_role(plane: &ControlPlane) -> Result<String> {
    let name = unique("reset");
    let group = format!("{name}.example.com");
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "rbac.ext-remediation/aggregate-to-ext-remediation": "true" } },
        "rules": [
            { "apiGroups": [group], "resources": ["resettemplates"], "verbs": ["get"] },
            { "apiGroups": [group], "resources": ["resets"], "verbs": ["get", "list", "create", "delete"] },
        ],
    }))?;
    let roles: Api<ClusterRole> = Api::all(plane.client().await?);
    roles.create(&PostParams::default(), &role).await?;
    Ok(group)
}

/// Installs both, waits until the accounts' rights are these, and uninstalls them.
async fn expect(plane: &ControlPlane, component: &str, releases: [&Release; 2], table: Rights<'_>) -> Result<()> {
    for release in releases {
        release.install(plane).await?;
    }
    let accounts = releases.map(|release| {
        let (name, namespace) = (release.name(), release.namespace());
        format!("system:serviceaccount:{namespace}:{name}-nodeward-{component}")
    });
    exactly(plane, accounts.each_ref().map(String::as_str), table).await?;
    for release in releases {
        release.uninstall(plane).await?;
    }
    Ok(())
}

/// Waits until the users' rights are these.
async fn exactly(plane: &ControlPlane, users: [&str; 2], table: Rights<'_>) -> Result<()> {
    let reviews: Api<SubjectAccessReview> = Api::all(plane.client().await?);
    // A grant is in force once the authorizer's own watch has seen it.
    wait::until("the rights to be exactly these", secs(60), || async {
        let mut wrong = Vec::new();
        for line in table.lines().filter(|line| !line.trim().is_empty()) {
            let right: Vec<&str> = line.split_whitespace().collect();
            let [verb, resource, object, first, second] = right[..] else {
                anyhow::bail!("not a right: {line}");
            };
            for (user, expected) in users.into_iter().zip([first, second]) {
                let review = review_of(user, verb, resource, object);
                let answer = reviews.create(&PostParams::default(), &review).await?;
                let allowed = answer.status.context("no answer")?.allowed;
                if allowed != (expected == "yes") {
                    wrong.push(format!("{user}: should be {expected}: {line}"));
                }
            }
        }
        ensure!(wrong.is_empty(), "{wrong:#?}");
        Ok(())
    })
    .await
}

fn review_of(user: &str, verb: &str, resource: &str, object: &str) -> SubjectAccessReview {
    let some = |text: &str| (!text.is_empty() && text != "-").then(|| text.to_owned());
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
    let (within, name) = object.split_once('/').unwrap_or((object, ""));
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            resource_attributes: Some(ResourceAttributes {
                verb: some(verb),
                group: some(group),
                resource: some(resource),
                subresource: some(subresource),
                namespace: some(within),
                name: some(name),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}
