//! FleetLock: the protocol by which operating systems that update themselves ask before they reboot.
