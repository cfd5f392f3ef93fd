//! Free loopback ports.

use std::net::TcpListener;
use std::sync::Mutex;

use anyhow::{Context, Result};

/// Below the range from which Linux takes the ports of outgoing connections (32768 and up), so that a part which is
/// killed and started again finds its port still free.
const RANGE: std::ops::Range<u16> = 14_000..32_000;

/// How many ports one process has for itself.
const BLOCK: u16 = 450;

/// Ports from which no other process chooses, for as long as this one listens on the first of them.
struct Block {
    _claim: TcpListener,
    first: u16,
    given: u16,
}

/// A loopback port on which nothing listens now. It is given to nobody else before hundreds of others were, in whichever
/// process: between the choice and the first use it would be free for all, and whenever its user is started again.
///
/// # Errors
/// When all of them are in use, or claimed by other processes.
pub fn free() -> Result<u16> {
    static OWN: Mutex<Option<Block>> = Mutex::new(None);
    let mut own = crate::lock(&OWN);
    let block = match own.take() {
        Some(block) => block,
        None => Block::claim()?,
    };
    own.insert(block).next()
}

fn listen(port: u16) -> Option<TcpListener> {
    TcpListener::bind(("127.0.0.1", port)).ok()
}

impl Block {
    fn claim() -> Result<Self> {
        let blocks = (RANGE.end - RANGE.start) / BLOCK;
        let begin = fastrand::u16(..blocks);
        let mut firsts = (0..blocks).map(|n| RANGE.start + (begin + n) % blocks * BLOCK);
        let block = firsts.find_map(|first| {
            Some(Self {
                _claim: listen(first)?,
                first,
                given: 0,
            })
        });
        block.with_context(|| format!("every block of loopback ports in {RANGE:?} is claimed"))
    }

    fn next(&mut self) -> Result<u16> {
        for _ in 1..BLOCK {
            self.given = self.given % (BLOCK - 1) + 1;
            let port = self.first + self.given;
            if listen(port).is_some() {
                return Ok(port);
            }
        }
        let (first, last) = (self.first, self.first + BLOCK - 1);
        Err(anyhow::anyhow!("found no free loopback port from {first} to {last}"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{BLOCK, Block, free};

    #[test]
    fn no_port_is_given_twice() {
        let mut others = Block::claim().unwrap();
        let mut given = BTreeSet::new();
        for _ in 0..BLOCK / 4 {
            assert!(given.insert(free().unwrap()));
            assert!(given.insert(others.next().unwrap()));
        }
    }
}
