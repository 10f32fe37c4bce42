//! Users and groups as the system's databases have them (passwd, LDAP, …). Every question may take
//! as long as a network: not for the runtime's threads.

use super::getent;
use std::ffi::{CStr, CString};

/// Of an entry; a group with more members than fit is not found.
const BUFFER_BYTES: usize = 256 << 10;
/// The most that a user is in, as far as this program asks.
const MOST_GROUPS: usize = 4096;

/// The name of an account.
pub fn user_name(uid: u32) -> Option<String> {
    if let Some(entry) = getent::ask("passwd", &uid.to_string()) {
        let name = entry.split(':').next().unwrap_or_default();
        return (!name.is_empty()).then(|| name.to_string());
    }
    let mut buffer = vec![0; BUFFER_BYTES];
    // SAFETY: a `passwd` of null pointers and zeros is a valid one; all pointers are to locals that
    // outlive the call, whose length is told. What is found points into the buffer, and is copied
    // while that lives.
    unsafe {
        let mut entry: libc::passwd = std::mem::zeroed();
        let mut found = std::ptr::null_mut();
        libc::getpwuid_r(
            uid,
            &mut entry,
            buffer.as_mut_ptr(),
            buffer.len(),
            &mut found,
        );
        if found.is_null() {
            None
        } else {
            CStr::from_ptr(entry.pw_name)
                .to_str()
                .ok()
                .map(str::to_string)
        }
    }
}

/// The number of a group.
pub fn group_id(name: &str) -> Option<u32> {
    if let Some(entry) = getent::ask("group", name) {
        return entry.split(':').nth(2)?.parse().ok();
    }
    let name = CString::new(name).ok()?;
    let mut buffer = vec![0; BUFFER_BYTES];
    // SAFETY: as above; the name ends in a zero.
    unsafe {
        let mut entry: libc::group = std::mem::zeroed();
        let mut found = std::ptr::null_mut();
        libc::getgrnam_r(
            name.as_ptr(),
            &mut entry,
            buffer.as_mut_ptr(),
            buffer.len(),
            &mut found,
        );
        (!found.is_null()).then_some(entry.gr_gid)
    }
}

/// Whether a user, whose own group is `gid`, is in a group.
pub fn is_member(user: &str, gid: u32, group: u32) -> bool {
    if let Some(entry) = getent::ask("initgroups", user) {
        let mut others = entry.split_whitespace().skip(1);
        return gid == group || others.any(|id| id.parse() == Ok(group));
    }
    let Ok(user) = CString::new(user) else {
        return false;
    };
    let mut groups = vec![0; MOST_GROUPS];
    let mut count = MOST_GROUPS as libc::c_int;
    // SAFETY: the name ends in a zero; at most `count` numbers are written, and as many are there.
    let known = unsafe { libc::getgrouplist(user.as_ptr(), gid, groups.as_mut_ptr(), &mut count) };
    groups.truncate(usize::try_from(count).unwrap_or(0));
    gid == group || (known >= 0 && groups.contains(&group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_everywhere() {
        assert_eq!(user_name(0).as_deref(), Some("root"));
        assert_eq!(user_name(u32::MAX - 7), None);
        let Some(group) = group_id("root") else {
            return;
        };
        assert!(is_member("root", 0, group));
        assert!(!is_member("no such user", 12_345, group));
        assert_eq!(group_id("no such group\0"), None);
    }
}
