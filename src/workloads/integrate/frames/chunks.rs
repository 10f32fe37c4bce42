//! Where the chunks of a dataset lie in its file, from an index of the old kind (B-tree version 1), which most files of detectors
//! have ("HDF5 File Format Specification", III.A.1). It is walked once: the library walks all of it for each chunk that it is
//! asked for. What is not understood here, other kinds of index among it, is left to the library.

use rust_hdf5::format::{
    BlockReader, FormatContext, FormatError, FormatResult, UNDEF_ADDR,
    btree_v1::{BTreeV1Config, BTreeV1Node, ChunkBTreeV1Node},
    dense_link::read_dense_links,
    local_heap::{LocalHeapHeader, local_heap_get_string},
    messages::{
        MSG_DATA_LAYOUT, MSG_FLAG_SHARED, MSG_LINK, MSG_LINK_INFO, MSG_OBJ_HEADER_CONTINUATION, MSG_SYMBOL_TABLE,
        data_layout::DataLayoutMessage,
        link::{LinkMessage, LinkTarget},
        link_info::LinkInfoMessage,
    },
    object_header::ObjectHeader,
    superblock::{SuperblockV0V1, SuperblockV2V3, detect_superblock_version},
    symbol_table::SymbolTableNode,
};
use std::{collections::BTreeMap, fs::File, os::unix::fs::FileExt, path::Path};

/// The most chunks of a dataset; beyond them the library is asked.
const MAX_CHUNKS: usize = 1 << 24;
/// The most bytes that the parts of a header, or of a group, may claim.
const MAX_BLOCK: u64 = 64 << 20;
/// The most blocks that are read of a file: enough for that many chunks. What refers to itself ends here.
const MAX_BLOCKS: usize = 1 << 20;
/// The most messages of a header.
const MAX_MESSAGES: usize = 1 << 16;
const SUPERBLOCK_BYTES: usize = 512;
const HEADER_BYTES: usize = 8192;

/// Stored chunks by their place in the grid of chunks.
pub(super) struct Chunks {
    file: File,
    places: BTreeMap<Vec<u64>, Place>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    address: u64,
    bytes: u32,
    /// Bit i: filter i was not applied.
    mask: u32,
}

impl Chunks {
    /// Those of the dataset at this path in the file, links followed. None where it cannot be told.
    pub(super) fn of(path: &Path, dataset: &str) -> Option<Self> {
        let mut walk = Walk::begin(File::open(path).ok()?)?;
        let mut header = walk.header(walk.root)?;
        for name in dataset.split('/').filter(|name| !name.is_empty()) {
            let address = walk.child(&header, name)?;
            header = walk.header(address)?;
        }
        let layout = header.iter().find(|message| message.kind == MSG_DATA_LAYOUT)?;
        let (layout, _) = DataLayoutMessage::decode(&layout.data, &walk.context).ok()?;
        let DataLayoutMessage::ChunkedV3 { chunk_dims, b_tree_address } = layout else { return None };
        // The last extent is that of an element.
        let (_, chunk) = chunk_dims.split_last()?;
        let places = walk.tree(b_tree_address, chunk)?;
        Some(Self { file: walk.file, places })
    }

    /// The stored bytes of a chunk and its filter mask. None where the index had no such chunk when it was read.
    pub(super) fn read(&self, place: &[u64]) -> Option<Result<(Vec<u8>, u32), String>> {
        let Place { address, bytes, mask } = *self.places.get(place)?;
        let length = self.file.metadata().map_or(0, |metadata| metadata.len());
        if address.checked_add(u64::from(bytes)).is_none_or(|end| end > length) {
            return Some(Err(format!("read past end: {bytes} bytes at {address} of {length}")));
        }
        let mut raw = vec![0; bytes as usize];
        Some(self.file.read_exact_at(&mut raw, address).map(|()| (raw, mask)).map_err(|error| error.to_string()))
    }
}

/// A message of an object's header.
struct Message {
    kind: u8,
    data: Vec<u8>,
}

/// A file, and how its addresses are written.
struct Walk {
    file: File,
    context: FormatContext,
    trees: BTreeV1Config,
    /// The header of the root group.
    root: u64,
    /// Blocks that were read.
    blocks: usize,
}

impl BlockReader for Walk {
    fn read_block(&mut self, offset: u64, length: usize) -> FormatResult<Vec<u8>> {
        self.blocks += 1;
        if self.blocks > MAX_BLOCKS {
            return Err(FormatError::InvalidData("more blocks than a file may have".into()));
        }
        let size = self.file.metadata().map_or(0, |metadata| metadata.len());
        let length = (size.saturating_sub(offset)).min(length as u64).min(MAX_BLOCK) as usize;
        let mut block = vec![0; length];
        self.file.read_exact_at(&mut block, offset).map_err(|error| FormatError::InvalidData(error.to_string()))?;
        Ok(block)
    }
}

impl Walk {
    fn begin(file: File) -> Option<Self> {
        let context = FormatContext { sizeof_addr: 8, sizeof_size: 8 };
        let mut walk = Self { file, context, trees: BTreeV1Config::default(), root: UNDEF_ADDR, blocks: 0 };
        let block = walk.read_block(0, SUPERBLOCK_BYTES).ok()?;
        let base;
        if detect_superblock_version(&block).ok()? < 2 {
            let found = SuperblockV0V1::decode(&block).ok()?;
            (walk.context.sizeof_addr, walk.context.sizeof_size) = (found.sizeof_offsets, found.sizeof_lengths);
            walk.trees.sym_leaf_k = found.sym_leaf_k;
            walk.trees.snode_internal_k = found.btree_internal_k;
            walk.trees.chunk_internal_k = found.indexed_storage_k.unwrap_or(walk.trees.chunk_internal_k);
            (walk.root, base) = (found.root_symbol_table_entry.obj_header_addr, found.base_address);
        } else {
            let found = SuperblockV2V3::decode(&block).ok()?;
            (walk.context.sizeof_addr, walk.context.sizeof_size) = (found.sizeof_offsets, found.sizeof_lengths);
            (walk.root, base) = (found.root_group_object_header_address, found.base_address);
        }
        (base == 0).then_some(walk)
    }

    /// The messages of an object, those of its continuations among them. None where some are shared with others.
    fn header(&mut self, address: u64) -> Option<Vec<Message>> {
        let block = self.read_block(address, HEADER_BYTES).ok()?;
        let header = match ObjectHeader::decode_any(&block) {
            Err(FormatError::BufferTooShort { needed, .. }) => {
                ObjectHeader::decode_any(&self.read_block(address, needed).ok()?).ok()?.0
            }
            decoded => decoded.ok()?.0,
        };
        let is_new = block.starts_with(b"OHDR");
        let has_order = is_new && header.flags & 0x04 != 0;
        let mut messages: Vec<Message> = Vec::with_capacity(header.messages.len());
        for message in header.messages {
            let is_needed = [MSG_DATA_LAYOUT, MSG_LINK, MSG_LINK_INFO, MSG_SYMBOL_TABLE].contains(&message.msg_type);
            if is_needed && message.flags & MSG_FLAG_SHARED != 0 {
                return None;
            }
            messages.push(Message { kind: message.msg_type, data: message.data });
        }
        let mut next = 0;
        while next < messages.len() {
            if messages[next].kind == MSG_OBJ_HEADER_CONTINUATION {
                let data = &messages[next].data;
                let (address, rest) = self.address(data)?;
                let length = number(rest.get(..usize::from(self.context.sizeof_size))?);
                if length > MAX_BLOCK || messages.len() > MAX_MESSAGES {
                    return None;
                }
                let block = self.read_block(address, length as usize).ok()?;
                messages.extend(if is_new { continued(&block, has_order)? } else { continued_old(&block)? });
            }
            next += 1;
        }
        Some(messages)
    }

    /// An address, and what follows it.
    fn address<'d>(&self, data: &'d [u8]) -> Option<(u64, &'d [u8])> {
        let (address, rest) = data.split_at_checked(usize::from(self.context.sizeof_addr))?;
        Some((number(address), rest))
    }

    /// The header's address of what a group calls `name`.
    fn child(&mut self, group: &[Message], name: &str) -> Option<u64> {
        let hard = |link: LinkMessage| match link.target {
            LinkTarget::Hard { address } if link.name == name => Some(address),
            _ => None,
        };
        for message in group {
            let found = match message.kind {
                MSG_SYMBOL_TABLE => {
                    let (tree, rest) = self.address(&message.data)?;
                    let (heap, _) = self.address(rest)?;
                    self.symbol(tree, heap, name)
                }
                MSG_LINK => hard(LinkMessage::decode(&message.data, &self.context).ok()?.0),
                MSG_LINK_INFO => {
                    let (info, _) = LinkInfoMessage::decode(&message.data, &self.context).ok()?;
                    let context = self.context;
                    read_dense_links(&info, &context, self).ok()?.into_iter().find_map(hard)
                }
                _ => None,
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// A name in a group of the old kind: a tree of tables of names, which lie in a heap.
    fn symbol(&mut self, tree: u64, heap: u64, name: &str) -> Option<u64> {
        let (addresses, sizes) = (usize::from(self.context.sizeof_addr), usize::from(self.context.sizeof_size));
        let heap = LocalHeapHeader::decode(&self.read_block(heap, 64).ok()?, addresses, sizes).ok()?;
        let names = self.read_block(heap.data_addr, usize::try_from(heap.data_size).ok()?).ok()?;
        let mut waiting = vec![tree];
        while let Some(address) = waiting.pop() {
            let bytes = self.trees.snode_btree_node_size(addresses, sizes);
            let block = self.read_block(address, bytes).ok()?;
            let node = BTreeV1Node::decode(&block, addresses, sizes, self.trees.snode_max_entries()).ok()?;
            if node.level > 0 {
                waiting.extend(&node.children);
                continue;
            }
            for table in node.children {
                let block = self.read_block(table, self.trees.symbol_table_node_size(addresses, sizes)).ok()?;
                let most = self.trees.sym_leaf_max_entries();
                let table = SymbolTableNode::decode(&block, addresses, sizes, most).ok()?;
                for entry in table.entries {
                    let is_meant = local_heap_get_string(&names, entry.name_offset).is_ok_and(|found| found == name);
                    if is_meant && entry.obj_header_addr != UNDEF_ADDR {
                        return Some(entry.obj_header_addr);
                    }
                }
            }
        }
        None
    }

    /// All chunks of a tree.
    fn tree(&mut self, root: u64, chunk: &[u64]) -> Option<BTreeMap<Vec<u64>, Place>> {
        let mut places = BTreeMap::new();
        let mut waiting = if root == UNDEF_ADDR { Vec::new() } else { vec![root] };
        while let Some(address) = waiting.pop() {
            let addresses = usize::from(self.context.sizeof_addr);
            let block = self.read_block(address, self.trees.chunk_btree_node_size(addresses, chunk.len())).ok()?;
            let most = self.trees.chunk_max_entries();
            let node = ChunkBTreeV1Node::decode(&block, addresses, chunk.len(), most).ok()?;
            if node.level > 0 {
                waiting.extend(&node.children);
                continue;
            }
            for (key, child) in node.keys.iter().zip(&node.children).filter(|(_, child)| **child != UNDEF_ADDR) {
                let place = key.offsets.iter().zip(chunk).map(|(offset, extent)| offset.checked_div(*extent));
                let place: Vec<u64> = place.collect::<Option<_>>()?;
                places.insert(place, Place { address: *child, bytes: key.chunk_size, mask: key.filter_mask });
            }
            if places.len() > MAX_CHUNKS {
                return None;
            }
        }
        Some(places)
    }
}

/// Little-endian, of up to eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Messages of a header of version 1 that lie elsewhere: kind and length of two bytes each, flags, three of nothing.
fn continued_old(mut block: &[u8]) -> Option<Vec<Message>> {
    let mut messages = Vec::new();
    while let Some((head, rest)) = block.split_first_chunk::<8>() {
        let (data, behind) = rest.split_at_checked(usize::from(u16::from_le_bytes([head[2], head[3]])))?;
        if head[4] & MSG_FLAG_SHARED != 0 && head[0] == MSG_DATA_LAYOUT {
            return None;
        }
        messages.push(Message { kind: head[0], data: data.to_vec() });
        block = behind;
    }
    Some(messages)
}

/// Those of version 2: kind, length of two bytes, flags, and the order where it is kept; a checksum at the end.
fn continued(block: &[u8], has_order: bool) -> Option<Vec<Message>> {
    let mut block = block.strip_prefix(b"OCHK")?;
    block = block.get(..block.len().checked_sub(4)?)?;
    let mut messages = Vec::new();
    while let Some((head, rest)) = block.split_first_chunk::<4>() {
        let Some(rest) = rest.get(if has_order { 2 } else { 0 }..) else { break };
        let Some((data, behind)) = rest.split_at_checked(usize::from(u16::from_le_bytes([head[1], head[2]]))) else {
            break;
        };
        if head[3] & MSG_FLAG_SHARED != 0 && head[0] == MSG_DATA_LAYOUT {
            return None;
        }
        messages.push(Message { kind: head[0], data: data.to_vec() });
        block = behind;
    }
    Some(messages)
}
