//! Drains that wait for each other: one of them gives way.

use nodeward_api::reason::LockReason;

use super::{File, Planner};

impl Planner<'_> {
    /// Of claims that hold pods which are down, and wait for each other, the youngest gives way at once: no time would end
    /// that.
    pub(super) fn give_way(&mut self, files: &[File]) {
        let Some(uid) = self.write.next.gives_way(&self.snapshot.facts).map(str::to_owned) else {
            return;
        };
        let Some(file) = files
            .iter()
            .find(|file| file.case.node_uid.as_deref() == Some(uid.as_str()))
        else {
            return;
        };
        let down = &file.down;
        self.write.next.time_out(&uid, &|pod| down.is_down(pod), self.now);
        let note = "gives way to a drain that waits for it and that it waits for".to_owned();
        self.announce(&file.case.name, &uid, LockReason::Requeued, true, note);
    }
}
