// Unsigned integers in the order of the keys: NaN last, -0 and 0 equal.
fn order(key: u32) -> u32 {
    var bits = key;
    if (p.flags & 1u) != 0u {
        let magnitude = key & 0x7fffffffu;
        if magnitude > 0x7f800000u {
            return 0xffffffffu;
        }
        bits = select(key | 0x80000000u, ~key, (key >> 31u) == 1u && magnitude != 0u);
    }
    return select(bits, ~bits, (p.flags & 2u) != 0u);
}
