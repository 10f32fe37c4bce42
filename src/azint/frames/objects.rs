//! Objects of an HDF5 file: from its superblock through groups of the old and the new kind to the
//! headers of datasets ("HDF5 File Format Specification"). Only what `chunks` needs to find an
//! index; whatever is not understood gives None.

use rust_hdf5::format::{
    BlockReader, FormatContext, FormatError, FormatResult, UNDEF_ADDR,
    btree_v1::{BTreeV1Config, BTreeV1Node},
    checksum::checksum_metadata,
    dense_link::read_dense_links,
    local_heap::{LocalHeapHeader, local_heap_get_string},
    messages::{
        MSG_DATA_LAYOUT, MSG_DATASPACE, MSG_FLAG_SHARED, MSG_LINK, MSG_LINK_INFO,
        MSG_OBJ_HEADER_CONTINUATION, MSG_SYMBOL_TABLE,
        link::{LinkMessage, LinkTarget},
        link_info::LinkInfoMessage,
    },
    object_header::ObjectHeader,
    superblock::{SuperblockV0V1, SuperblockV2V3, detect_superblock_version},
    symbol_table::SymbolTableNode,
};
use std::{fs::File, os::unix::fs::FileExt};

/// The most bytes that the parts of a header, or of a group, may claim.
const MAX_BLOCK: u64 = 64 << 20;
/// The most blocks that are read of a file. What refers to itself ends here.
const MAX_BLOCKS: usize = 1 << 20;
/// The most messages of a header.
const MAX_MESSAGES: usize = 1 << 16;
pub(super) const CHECKSUM_BYTES: usize = 4;
const SUPERBLOCK_BYTES: usize = 512;
const HEADER_BYTES: usize = 8192;

/// A message of an object's header.
pub(super) struct HeaderMessage {
    pub(super) kind: u8,
    pub(super) data: Vec<u8>,
}

/// A file, and how its addresses are written.
pub(super) struct Objects {
    pub(super) file: File,
    pub(super) context: FormatContext,
    pub(super) trees: BTreeV1Config,
    /// The header of the root group.
    root: u64,
    /// Blocks that were read.
    blocks: usize,
}

impl BlockReader for Objects {
    fn read_block(&mut self, offset: u64, length: usize) -> FormatResult<Vec<u8>> {
        self.blocks += 1;
        if self.blocks > MAX_BLOCKS {
            return Err(FormatError::InvalidData(
                "more blocks than a file may have".into(),
            ));
        }
        let size = self.file.metadata().map_or(0, |metadata| metadata.len());
        let length = (size.saturating_sub(offset))
            .min(length as u64)
            .min(MAX_BLOCK) as usize;
        let mut block = vec![0; length];
        self.file
            .read_exact_at(&mut block, offset)
            .map_err(|error| FormatError::InvalidData(error.to_string()))?;
        Ok(block)
    }
}

impl Objects {
    pub(super) fn of(file: File) -> Option<Self> {
        let context = FormatContext {
            sizeof_addr: 8,
            sizeof_size: 8,
        };
        let mut objects = Self {
            file,
            context,
            trees: BTreeV1Config::default(),
            root: UNDEF_ADDR,
            blocks: 0,
        };
        let block = objects.read_block(0, SUPERBLOCK_BYTES).ok()?;
        let base;
        if detect_superblock_version(&block).ok()? < 2 {
            let found = SuperblockV0V1::decode(&block).ok()?;
            (objects.context.sizeof_addr, objects.context.sizeof_size) =
                (found.sizeof_offsets, found.sizeof_lengths);
            objects.trees.sym_leaf_k = found.sym_leaf_k;
            objects.trees.snode_internal_k = found.btree_internal_k;
            objects.trees.chunk_internal_k = found
                .indexed_storage_k
                .unwrap_or(objects.trees.chunk_internal_k);
            (objects.root, base) = (
                found.root_symbol_table_entry.obj_header_addr,
                found.base_address,
            );
        } else {
            let found = SuperblockV2V3::decode(&block).ok()?;
            (objects.context.sizeof_addr, objects.context.sizeof_size) =
                (found.sizeof_offsets, found.sizeof_lengths);
            (objects.root, base) = (found.root_group_object_header_address, found.base_address);
        }
        (base == 0).then_some(objects)
    }

    /// A block that its checksum follows; None where that is another.
    pub(super) fn checked(&mut self, offset: u64, length: usize) -> Option<Vec<u8>> {
        let mut block = self
            .read_block(offset, length.checked_add(CHECKSUM_BYTES)?)
            .ok()?;
        let sum = u32::from_le_bytes(block.get(length..)?.try_into().ok()?);
        block.truncate(length);
        (checksum_metadata(&block) == sum).then_some(block)
    }

    /// The header of the object at this path, links followed.
    pub(super) fn at(&mut self, path: &str) -> Option<Vec<HeaderMessage>> {
        let mut header = self.header(self.root)?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let address = self.child(&header, name)?;
            header = self.header(address)?;
        }
        Some(header)
    }

    /// The messages of an object, those of its continuations among them. None where some are shared
    /// with others.
    fn header(&mut self, address: u64) -> Option<Vec<HeaderMessage>> {
        let block = self.read_block(address, HEADER_BYTES).ok()?;
        let header = match ObjectHeader::decode_any(&block) {
            Err(FormatError::BufferTooShort { needed, .. }) => {
                ObjectHeader::decode_any(&self.read_block(address, needed).ok()?)
                    .ok()?
                    .0
            }
            decoded => decoded.ok()?.0,
        };
        let is_new = block.starts_with(b"OHDR");
        let has_order = is_new && header.flags & 0x04 != 0;
        let mut messages: Vec<HeaderMessage> = Vec::with_capacity(header.messages.len());
        for message in header.messages {
            if is_needed(message.msg_type) && message.flags & MSG_FLAG_SHARED != 0 {
                return None;
            }
            messages.push(HeaderMessage {
                kind: message.msg_type,
                data: message.data,
            });
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
                messages.extend(if is_new {
                    continued(&block, has_order)?
                } else {
                    continued_old(&block)?
                });
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
    fn child(&mut self, group: &[HeaderMessage], name: &str) -> Option<u64> {
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
                    read_dense_links(&info, &context, self)
                        .ok()?
                        .into_iter()
                        .find_map(hard)
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
        let (addresses, sizes) = (
            usize::from(self.context.sizeof_addr),
            usize::from(self.context.sizeof_size),
        );
        let heap =
            LocalHeapHeader::decode(&self.read_block(heap, 64).ok()?, addresses, sizes).ok()?;
        let names = self
            .read_block(heap.data_addr, usize::try_from(heap.data_size).ok()?)
            .ok()?;
        let mut waiting = vec![tree];
        while let Some(address) = waiting.pop() {
            let bytes = self.trees.snode_btree_node_size(addresses, sizes);
            let block = self.read_block(address, bytes).ok()?;
            let node =
                BTreeV1Node::decode(&block, addresses, sizes, self.trees.snode_max_entries())
                    .ok()?;
            if node.level > 0 {
                waiting.extend(&node.children);
                continue;
            }
            for table in node.children {
                let block = self
                    .read_block(table, self.trees.symbol_table_node_size(addresses, sizes))
                    .ok()?;
                let most = self.trees.sym_leaf_max_entries();
                let table = SymbolTableNode::decode(&block, addresses, sizes, most).ok()?;
                for entry in table.entries {
                    let is_meant = local_heap_get_string(&names, entry.name_offset)
                        .is_ok_and(|found| found == name);
                    if is_meant && entry.obj_header_addr != UNDEF_ADDR {
                        return Some(entry.obj_header_addr);
                    }
                }
            }
        }
        None
    }
}

/// Messages that must be understood.
fn is_needed(kind: u8) -> bool {
    [
        MSG_DATA_LAYOUT,
        MSG_DATASPACE,
        MSG_LINK,
        MSG_LINK_INFO,
        MSG_SYMBOL_TABLE,
    ]
    .contains(&kind)
}

/// Little-endian, of up to eight bytes.
pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Messages of a header of version 1 that lie elsewhere: kind and length of two bytes each, flags,
/// three of nothing.
fn continued_old(mut block: &[u8]) -> Option<Vec<HeaderMessage>> {
    let mut messages = Vec::new();
    while let Some((head, rest)) = block.split_first_chunk::<8>() {
        let (data, behind) =
            rest.split_at_checked(usize::from(u16::from_le_bytes([head[2], head[3]])))?;
        if head[4] & MSG_FLAG_SHARED != 0 && is_needed(head[0]) {
            return None;
        }
        messages.push(HeaderMessage {
            kind: head[0],
            data: data.to_vec(),
        });
        block = behind;
    }
    Some(messages)
}

/// Messages of a header of version 2: kind, length of two bytes, flags, and the order where it is
/// kept; a checksum at the end.
fn continued(block: &[u8], has_order: bool) -> Option<Vec<HeaderMessage>> {
    let mut block = block.strip_prefix(b"OCHK")?;
    block = block.get(..block.len().checked_sub(4)?)?;
    let mut messages = Vec::new();
    while let Some((head, rest)) = block.split_first_chunk::<4>() {
        let Some(rest) = rest.get(if has_order { 2 } else { 0 }..) else {
            break;
        };
        let Some((data, behind)) =
            rest.split_at_checked(usize::from(u16::from_le_bytes([head[1], head[2]])))
        else {
            break;
        };
        if head[3] & MSG_FLAG_SHARED != 0 && is_needed(head[0]) {
            return None;
        }
        messages.push(HeaderMessage {
            kind: head[0],
            data: data.to_vec(),
        });
        block = behind;
    }
    Some(messages)
}
