//! Free loopback ports.

use std::net::TcpListener;

use anyhow::{Result, bail};

/// Below the range from which Linux takes the ports of outgoing connections (32768 and up), so that a part which is
/// killed and started again finds its port still free.
const RANGE: std::ops::Range<u16> = 14_000..32_000;

/// A loopback port on which nothing listens now.
///
/// # Errors
/// When two hundred random tries all hit a port in use.
pub fn free() -> Result<u16> {
    for _ in 0..200 {
        let port = fastrand::u16(RANGE);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("found no free loopback port in {RANGE:?}")
}
