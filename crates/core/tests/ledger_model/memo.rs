//! Answers that were found before: most states differ in what an answer does not depend on.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;

/// Answers by the hash of all that they depend on.
pub struct Memo<Answer> {
    shards: [Mutex<HashMap<u64, Answer>>; 16],
}

impl<Answer> Default for Memo<Answer> {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }
}

impl<Answer> fmt::Debug for Memo<Answer> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memo")
    }
}

impl<Answer: Clone> Memo<Answer> {
    pub fn get_or(&self, question: impl Hash, find: impl FnOnce() -> Answer) -> Answer {
        let key = hash(question);
        let shard = &self.shards[usize::try_from(key % 16).unwrap()];
        if let Some(answer) = shard.lock().unwrap().get(&key) {
            return answer.clone();
        }
        let answer = find();
        shard.lock().unwrap().insert(key, answer.clone());
        answer
    }
}

pub fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}
