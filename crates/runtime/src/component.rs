//! What an operator is called, everywhere that a name is needed.

/// The name and version of an operator. The name is the crate, the binary, the lease and the field manager at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Component {
    name: &'static str,
    version: &'static str,
}

impl Component {
    /// `name` in kebab case (`drain-keeper`), `version` as Cargo knows it.
    pub const fn new(name: &'static str, version: &'static str) -> Self {
        Self { name, version }
    }

    /// `drain-keeper`.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The version that `--version` prints.
    pub const fn version(&self) -> &'static str {
        self.version
    }

    /// The field manager of every server-side apply: one constant name a component, or fields change owners for ever.
    pub const fn field_manager(&self) -> &'static str {
        self.name
    }

    /// The `User-Agent` of every request, by which audit logs tell the operators apart.
    pub fn user_agent(&self) -> String {
        format!("nodeward/{}", self.name)
    }

    /// The prefix of the component's own metrics: `nodeward_drain_keeper`.
    pub fn metric_prefix(&self) -> String {
        format!("nodeward_{}", self.name.replace('-', "_"))
    }

    /// The name of the lease. A dry run takes one of its own, so that it can run beside the real operator.
    pub fn lease_name(&self, dry_run: bool) -> String {
        beside(self.name.to_owned(), dry_run)
    }
}

/// The name of what a process keeps; that of a dry run is another one, for it runs beside the real operator.
pub(crate) fn beside(name: String, dry_run: bool) -> String {
    if dry_run { name + "-dry-run" } else { name }
}

#[cfg(test)]
mod tests {
    use super::Component;

    #[test]
    fn every_derived_name_follows_from_the_component() {
        let component = Component::new("drain-keeper", "1.2.3");
        assert_eq!(component.user_agent(), "nodeward/drain-keeper");
        assert_eq!(component.metric_prefix(), "nodeward_drain_keeper");
        assert_eq!(component.lease_name(false), "drain-keeper");
        assert_eq!(component.lease_name(true), "drain-keeper-dry-run");
    }
}
