// Frames out of chunks as HDF5's filter 32008 writes them: blocks of elements whose bits were
// transposed (bitshuffle), each compressed by LZ4. A workgroup decodes one block after the other.
// All of its invocations read the same sequences, and share the bytes to be copied.
//
// Nothing that a file holds leads outside of buffers or into an endless loop: each round of a loop
// consumes bytes of the block, whose end is known, and each copy is checked before it begins. What
// is no such block is counted as a fault of its frame.

struct Push {
    // Of all frames; what follows its blocks in a chunk counts as one.
    blocks: u32,
    // Of a frame.
    per_frame: u32,
    // Bytes of an element: 1, 2 or 4.
    size: u32,
    // Bytes of a block that is not a frame's last: at most 8192.
    block_bytes: u32,
    // Bytes of a frame that are in blocks. Fewer than eight elements follow, as they are.
    in_blocks: u32,
    // Bytes of a frame.
    frame_bytes: u32,
    // Words of a frame in `frames`, of which it begins the first.
    frame_words: u32,
}

// Chunks one after the other, four bytes to a word, and a word behind them.
@group(0) @binding(0) var<storage, read> words: array<u32>;
// Of each block: the first of its bytes among those of `words`, and their number.
@group(0) @binding(1) var<storage, read> places: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> frames: array<u32>;
// Of each frame: 0 where all of its blocks could be decoded.
@group(0) @binding(3) var<storage, read_write> faults: array<atomic<u32>>;
var<immediate> p: Push;

const LANES = 128u;
// Workgroups at most. A dispatch may be cut between them, so that none asks how many there are.
const MOST_GROUPS = 65535u;

// A block, decompressed. Invocations that write a word and that read other bytes of it may meet.
var<workgroup> unpacked: array<atomic<u32>, 2048>;

// The byte `at` of the chunks.
fn stored_byte(at: u32) -> u32 {
    return (words[at / 4u] >> (8u * (at % 4u))) & 0xffu;
}

// Four bytes of the chunks from `at` on.
fn stored_word(at: u32) -> u32 {
    let shift = 8u * (at % 4u);
    let next = words[at / 4u + 1u] << ((32u - shift) & 31u);
    return (words[at / 4u] >> shift) | select(next, 0u, shift == 0u);
}

fn unpacked_byte(at: u32) -> u32 {
    return (atomicLoad(&unpacked[at / 4u]) >> (8u * (at % 4u))) & 0xffu;
}

// Writes those bytes of a word that are among `first` to `end`, of which there is one.
fn put(word: u32, value: u32, first: u32, end: u32) {
    let low = max(first, 4u * word) - 4u * word;
    let high = min(end, 4u * word + 4u) - 4u * word;
    if low == 0u && high == 4u {
        atomicStore(&unpacked[word], value);
    } else if low < high {
        let mask = (0xffffffffu << (8u * low)) & (0xffffffffu >> (32u - 8u * high));
        atomicStore(&unpacked[word], (atomicLoad(&unpacked[word]) & ~mask) | (value & mask));
    }
}

// Copies `count` bytes of the chunks.
fn copy_literals(source: u32, to: u32, count: u32, lane: u32) {
    let end = to + count;
    for (var word = to / 4u + lane; 4u * word < end; word += LANES) {
        let first = max(to, 4u * word);
        let value = stored_word(source + first - to) << (8u * (first - 4u * word));
        put(word, value, to, end);
    }
}

// Writes `count` bytes that repeat the `offset` ones before `to`.
fn copy_match(to: u32, offset: u32, count: u32, lane: u32) {
    let end = to + count;
    for (var word = to / 4u + lane; 4u * word < end; word += LANES) {
        var value = 0u;
        if offset == 1u {
            // As most matches of transposed bits are.
            value = 0x1010101u * unpacked_byte(to - 1u);
        } else {
            let first = max(4u * word, to);
            var later = (first - to) % offset;
            for (var byte = first - 4u * word; byte < 4u; byte++) {
                value |= unpacked_byte(to - offset + later) << (8u * byte);
                later = select(later + 1u, 0u, later + 1u == offset);
            }
        }
        put(word, value, to, end);
    }
}

// What the bytes from `at` on add to a length of 15, and where the next of the block is: 0 where it
// ends before.
fn extension(at: u32, end: u32) -> vec2<u32> {
    var sum = 0u;
    var next = at;
    var byte = 255u;
    while next + 4u <= end && stored_word(next) == 0xffffffffu {
        sum += 4u * 255u;
        next += 4u;
    }
    while byte == 255u && next < end {
        byte = stored_byte(next);
        sum += byte;
        next++;
    }
    return vec2<u32>(sum, select(next, 0u, byte == 255u));
}

// Decompresses the bytes `first` to `end` of the chunks. Whether they are a block of LZ4 that has
// `wanted` bytes, which is no more than there is room for.
fn unpack(first: u32, end: u32, wanted: u32, lane: u32) -> bool {
    var at = first;
    var written = 0u;
    var is_whole = false;
    loop {
        if at >= end {
            break;
        }
        let token = stored_byte(at);
        at++;
        var literals = token >> 4u;
        if literals == 15u {
            let more = extension(at, end);
            if more.y == 0u {
                break;
            }
            literals += more.x;
            at = more.y;
        }
        if literals > end - at || literals > wanted - written {
            break;
        }
        copy_literals(at, written, literals, lane);
        at += literals;
        written += literals;
        workgroupBarrier();
        if at == end {
            is_whole = written == wanted;
            break;
        }
        if end - at < 2u {
            break;
        }
        let offset = stored_byte(at) | (stored_byte(at + 1u) << 8u);
        at += 2u;
        var count = token & 15u;
        if count == 15u {
            let more = extension(at, end);
            if more.y == 0u {
                break;
            }
            count += more.x;
            at = more.y;
        }
        count += 4u;
        if offset == 0u || offset > written || count > wanted - written {
            break;
        }
        copy_match(written, offset, count, lane);
        written += count;
        workgroupBarrier();
    }
    return is_whole;
}

// Transposes a block's bits back. Of n elements, bit b of byte k of element i is bit i % 8 of byte
// i / 8 of row 8k + b, a row being n / 8 bytes.
fn unshuffle(bytes: u32, to: u32, lane: u32) {
    let columns = bytes / (8u * p.size);
    let rows = 8u * p.size;
    if p.size == 4u && columns % 4u == 0u {
        // Rows are whole words: one holds a bit of 32 elements that follow each other.
        for (var element = lane; element < bytes / 4u; element += LANES) {
            var value = 0u;
            var at = element / 32u;
            for (var row = 0u; row < rows; row++) {
                value |= ((atomicLoad(&unpacked[at]) >> (element % 32u)) & 1u) << row;
                at += columns / 4u;
            }
            frames[to + element] = value;
        }
        return;
    }
    // Neighbours in a word have neighbouring bits in a row. A product moves each to its element.
    var keep = 1u;
    var spread = 1u;
    var mask = 1u;
    if p.size == 2u {
        keep = 3u;
        spread = 0x8001u;
        mask = 0x10001u;
    } else if p.size == 1u {
        keep = 15u;
        spread = 0x204081u;
        mask = 0x1010101u;
    }
    for (var word = lane; 4u * word < bytes; word += LANES) {
        let element = 4u * word / p.size;
        var value = 0u;
        for (var row = 0u; row < rows; row++) {
            let bits = unpacked_byte(row * columns + element / 8u) >> (element % 8u);
            value |= (((bits & keep) * spread) & mask) << row;
        }
        frames[to + word] = value;
    }
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    for (var index = group.x; index < p.blocks; index += MOST_GROUPS) {
        let frame = index / p.per_frame;
        let before = (index % p.per_frame) * p.block_bytes;
        let to = frame * p.frame_words + min(before, p.in_blocks) / 4u;
        let first = places[index].x;
        let end = first + places[index].y;
        let is_inside = first <= end && end < 4u * arrayLength(&words) - 3u;
        let is_plain = before >= p.in_blocks;
        let wanted = min(p.block_bytes, p.in_blocks - min(before, p.in_blocks));
        let is_whole = unpack(first, select(first, end, is_inside && !is_plain), wanted, lane);
        if is_whole {
            unshuffle(wanted, to, lane);
        } else if is_plain && is_inside && end - first == p.frame_bytes - p.in_blocks {
            for (var word = lane; 4u * word < end - first; word += LANES) {
                frames[to + word] = stored_word(first + 4u * word);
            }
        } else if lane == 0u {
            atomicOr(&faults[frame], 1u);
        }
        workgroupBarrier();
    }
}
