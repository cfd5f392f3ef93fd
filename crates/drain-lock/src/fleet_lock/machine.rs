//! Which node an id means: its name, its machine-id, or what an operating system derives from that for this protocol.
//!
//! systemd's `sd_id128_get_app_specific()` keeps the machine-id itself secret: HMAC-SHA256 with the machine-id as key and
//! the application's id as message, the first 16 bytes of it, marked as a UUID of version 4. Zincati sends this form.

use std::collections::HashMap;
use std::sync::Arc;

use hmac::{Hmac, Mac};
use parking_lot::Mutex;
use sha2::Sha256;

use crate::snapshot::NodeFacts;

/// Zincati's application id.
const APPLICATION: MachineId = MachineId([
    0xde, 0x35, 0x10, 0x6b, 0x6e, 0xc2, 0x46, 0x88, 0xb6, 0x3a, 0xfd, 0xda, 0xa1, 0x56, 0x67, 0x9b,
]);

/// 128 bits that tell one machine from all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MachineId([u8; 16]);

impl MachineId {
    /// Reads 32 hexadecimal digits, with the dashes of a UUID or without; `None` for anything else, and for all zeros,
    /// which a machine has before its first boot is complete.
    pub fn parse(text: &str) -> Option<Self> {
        let is_dash = |at: usize| matches!(at, 8 | 13 | 18 | 23);
        let is_uuid = || text.bytes().enumerate().all(|(at, byte)| (byte == b'-') == is_dash(at));
        let digits = match text.len() {
            32 => text.to_owned(),
            36 if is_uuid() => text.replace('-', ""),
            _ => return None,
        };
        // The parser takes a sign, too.
        let is_hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let id = u128::from_str_radix(&digits, 16)
            .ok()
            .filter(|id| is_hexadecimal && *id != 0)?;
        Some(Self(id.to_be_bytes()))
    }

    /// What an application of this id is told instead of the machine-id.
    fn specific_to(self, application: Self) -> Option<Self> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(&application.0);
        let digest = mac.finalize().into_bytes();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(digest.get(..16)?);
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Some(Self(bytes))
    }

    /// The form that FleetLock clients send.
    pub fn for_fleet_lock(self) -> Option<Self> {
        self.specific_to(APPLICATION)
    }
}

/// What an id means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// No node.
    Unknown,
    Node(Arc<NodeFacts>),
    /// Several: machines that were cloned with their machine-id, or a node with the name of another's id.
    Several,
}

/// Machine-ids whose derived form has been computed once.
#[derive(Debug, Default)]
pub struct Machines(Mutex<HashMap<MachineId, MachineId>>);

impl Machines {
    /// The node that an id means.
    pub fn find(&self, id: &str, nodes: &[Arc<NodeFacts>]) -> Match {
        let asked = MachineId::parse(id);
        let mut derived = self.0.lock();
        if derived.len() > 2 * nodes.len() + 64 {
            derived.clear();
        }
        let mut is_machine = |node: &NodeFacts| {
            let (Some(asked), Some(machine)) = (asked, MachineId::parse(&node.machine_id)) else {
                return false;
            };
            if asked == machine {
                return true;
            }
            if !derived.contains_key(&machine)
                && let Some(form) = machine.for_fleet_lock()
            {
                derived.insert(machine, form);
            }
            derived.get(&machine) == Some(&asked)
        };
        let mut matching = nodes.iter().filter(|node| node.name.as_str() == id || is_machine(node));
        match (matching.next(), matching.next()) {
            (None, _) => Match::Unknown,
            (Some(node), None) => Match::Node(Arc::clone(node)),
            (Some(_), Some(_)) => Match::Several,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::observe::{ClusterCache, Objects};

    fn nodes(nodes: &[(&str, &str)]) -> Vec<Arc<NodeFacts>> {
        let nodes = nodes.iter().map(|(name, machine)| {
            serde_json::from_value(json!({
                "metadata": { "name": name, "uid": format!("{name}-uid") },
                "status": { "nodeInfo": {
                    "machineID": machine, "systemUUID": "", "bootID": "b", "kernelVersion": "", "osImage": "",
                    "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "",
                    "architecture": "",
                } },
            }))
            .unwrap()
        });
        let objects = Objects {
            nodes: nodes.collect(),
            ..Objects::default()
        };
        ClusterCache::fixed(&objects).nodes()
    }

    const MACHINE: &str = "1c09ca98649c4c7abc779cd04c96812e";
    const DERIVED: &str = "978a225b3d7b40e9acd7ce9b62f68444";

    #[test]
    fn the_derived_id_is_systemds() {
        let derived = MachineId::parse(MACHINE).unwrap().for_fleet_lock();
        assert_eq!(derived, MachineId::parse(DERIVED));
    }

    #[rstest]
    #[case::its_name("n1", Some("n1"))]
    #[case::its_machine_id(MACHINE, Some("n1"))]
    #[case::in_capitals("1C09CA98649C4C7ABC779CD04C96812E", Some("n1"))]
    #[case::with_dashes("1c09ca98-649c-4c7a-bc77-9cd04c96812e", Some("n1"))]
    #[case::the_derived_id(DERIVED, Some("n1"))]
    #[case::the_derived_id_with_dashes("978a225b-3d7b-40e9-acd7-ce9b62f68444", Some("n1"))]
    #[case::anothers("c988d2509fdf5cdcbed39037c56406fb", Some("n2"))]
    #[case::a_part_of_it("1c09ca98649c4c7a", None)]
    #[case::a_name_in_capitals("N1", None)]
    #[case::unknown("978a225b3d7b40e9acd7ce9b62f68445", None)]
    #[case::zeros("00000000000000000000000000000000", None)]
    #[case::empty("", None)]
    fn an_id_means_one_node_or_none(#[case] id: &str, #[case] node: Option<&str>) {
        let nodes = nodes(&[
            ("n1", MACHINE),
            ("n2", "C988D250-9FDF-5CDC-BED3-9037C56406FB"),
            ("n3", ""),
            ("n4", "00000000000000000000000000000000"),
            ("n5", "not-a-machine-id"),
        ]);
        let machines = Machines::default();
        for _ in 0..2 {
            let found = machines.find(id, &nodes);
            match node {
                None => assert_eq!(found, Match::Unknown),
                Some(name) => assert!(matches!(found, Match::Node(node) if node.name.as_str() == name)),
            }
        }
    }

    #[rstest]
    #[case::cloned_machines(&[("n1", MACHINE), ("n2", MACHINE)], DERIVED)]
    #[case::a_name_that_is_anothers_id(&[("n1", MACHINE), (MACHINE, "")], MACHINE)]
    fn ambiguous_machine_id_matches_no_node(#[case] known: &[(&str, &str)], #[case] id: &str) {
        assert_eq!(Machines::default().find(id, &nodes(known)), Match::Several);
    }

    #[rstest]
    #[case("1c09ca98-649c4c7abc779cd04c96812e---")]
    #[case("1c09ca98649c4c7abc779cd04c96812g")]
    #[case("1c09ca98649c4c7abc779cd04c96812")]
    #[case("+c09ca98649c4c7abc779cd04c96812e")]
    #[case("ééééééééééééééé")]
    #[case("éééééééééééééééé")]
    fn what_is_not_32_digits_is_no_machine_id(#[case] text: &str) {
        assert_eq!(MachineId::parse(text), None);
    }
}
