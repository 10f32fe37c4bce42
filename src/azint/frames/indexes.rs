//! Indexes of chunks: B-trees of both versions, arrays of fixed and of growing length ("HDF5 File
//! Format Specification", III.A.1, III.A.2, VII.C, VII.D). Each gives all chunks that were written,
//! or None where it is not understood.

use super::{
    chunks::ChunkPlace,
    objects::{CHECKSUM_BYTES, Objects, number},
};
use rust_hdf5::format::{
    BlockReader, UNDEF_ADDR,
    btree_v1::ChunkBTreeV1Node,
    chunk_index::{
        btree_v2::{BT2_TYPE_CHUNK_UNFILT, Bt2ChunkIndex, Bt2Header, collect_btree_v2_records},
        extensible_array::{EA_CLS_FILT_CHUNK, EaGeometry, EaSblkInfo, ExtensibleArrayHeader},
        fixed_array::{FA_CLIENT_FILT_CHUNK, FixedArrayHeader, FixedArrayPagedPrefix},
    },
    messages::data_layout::EarrayParams,
};
use std::collections::BTreeMap;

/// The most chunks of a dataset; beyond them the library is asked.
const MAX_CHUNKS: u64 = 1 << 22;
/// A header of an index has fewer bytes.
const HEADER_BYTES: usize = 256;
/// What the blocks of arrays begin with: a signature, a version, a class.
const PREFIX_BYTES: usize = 6;

type Places = BTreeMap<Vec<u64>, ChunkPlace>;

/// A B-tree of version 1. `chunk`: the extents of a chunk.
pub(super) fn tree(objects: &mut Objects, root: u64, chunk: &[u64]) -> Option<Places> {
    let addresses = usize::from(objects.context.sizeof_addr);
    let (bytes, most) = (
        objects.trees.chunk_btree_node_size(addresses, chunk.len()),
        objects.trees.chunk_max_entries(),
    );
    let mut places = BTreeMap::new();
    let mut waiting = if root == UNDEF_ADDR {
        Vec::new()
    } else {
        vec![root]
    };
    while let Some(address) = waiting.pop() {
        let block = objects.read_block(address, bytes).ok()?;
        let node = ChunkBTreeV1Node::decode(&block, addresses, chunk.len(), most).ok()?;
        if node.level > 0 {
            waiting.extend(&node.children);
            continue;
        }
        for (key, child) in node
            .keys
            .iter()
            .zip(&node.children)
            .filter(|(_, child)| **child != UNDEF_ADDR)
        {
            let place = key
                .offsets
                .iter()
                .zip(chunk)
                .map(|(offset, extent)| offset.checked_div(*extent));
            let found = ChunkPlace {
                address: *child,
                bytes: u64::from(key.chunk_size),
                mask: key.filter_mask,
            };
            places.insert(place.collect::<Option<_>>()?, found);
        }
        if places.len() as u64 > MAX_CHUNKS {
            return None;
        }
    }
    Some(places)
}

/// A B-tree of version 2. `bytes`: of a chunk without filters.
pub(super) fn tree_2(
    objects: &mut Objects,
    address: u64,
    bytes: u64,
    axes: usize,
) -> Option<Places> {
    if address == UNDEF_ADDR {
        return Some(BTreeMap::new());
    }
    let context = objects.context;
    let header =
        Bt2Header::decode(&objects.read_block(address, HEADER_BYTES).ok()?, &context).ok()?;
    if header.total_num_records > MAX_CHUNKS || header.record_size == 0 {
        return None;
    }
    let records = collect_btree_v2_records(&header, &context, objects).ok()?;
    let count = records.len() / usize::from(header.record_size);
    if header.record_type == BT2_TYPE_CHUNK_UNFILT {
        let all = Bt2ChunkIndex::decode_unfiltered_records(&records, count, axes, &context).ok()?;
        let place = |address| ChunkPlace {
            address,
            bytes,
            mask: 0,
        };
        return Some(
            all.into_iter()
                .map(|record| (record.scaled_offsets, place(record.chunk_address)))
                .collect(),
        );
    }
    let all =
        Bt2ChunkIndex::decode_filtered_records(&records, count, axes, header.record_size, &context)
            .ok()?;
    let place = |address, bytes, mask| ChunkPlace {
        address,
        bytes,
        mask,
    };
    let each = all.into_iter().map(|record| {
        (
            record.scaled_offsets,
            place(record.chunk_address, record.chunk_size, record.filter_mask),
        )
    });
    Some(each.collect())
}

/// How many chunks there are along each axis of the grid in which arrays count: that of the largest
/// extents, where the first may have no end. None for grids of another kind.
pub(super) fn grid(extents: &[u64], largest: Option<&[u64]>, chunk: &[u64]) -> Option<Vec<u64>> {
    let extent = |axis: usize| match largest.and_then(|largest| largest.get(axis)) {
        Some(&u64::MAX) if axis == 0 => Some(extents[0]),
        Some(&u64::MAX) => None,
        Some(largest) => Some(*largest),
        None => Some(extents[axis]),
    };
    let count = |axis: usize| {
        extent(axis)?
            .checked_next_multiple_of(chunk[axis])
            .map(|extent| extent / chunk[axis])
    };
    let is_sound = extents.len() == chunk.len() && chunk.iter().all(|extent| *extent > 0);
    let grid: Vec<u64> = if is_sound {
        (0..extents.len()).map(count).collect::<Option<_>>()?
    } else {
        return None;
    };
    let all = grid
        .iter()
        .try_fold(1u64, |product, count| product.checked_mul(*count))?;
    (all <= MAX_CHUNKS).then_some(grid)
}

/// Elements of an array: an address each, and with filters a size and a mask.
struct Elements<'g> {
    addresses: usize,
    /// Bytes of a size; None without filters.
    sizes: Option<usize>,
    /// Of a chunk without filters.
    bytes: u64,
    grid: &'g [u64],
    /// The number of the element that comes next.
    next: u64,
    places: Places,
}

impl<'g> Elements<'g> {
    /// `width`: bytes of an element.
    fn new(
        addresses: usize,
        width: usize,
        is_filtered: bool,
        bytes: u64,
        grid: &'g [u64],
    ) -> Option<Self> {
        let sizes = if is_filtered {
            Some(width.checked_sub(addresses + 4).filter(|size| *size <= 8)?)
        } else {
            None
        };
        Some(Self {
            addresses,
            sizes,
            bytes,
            grid,
            next: 0,
            places: BTreeMap::new(),
        })
    }

    fn width(&self) -> usize {
        self.addresses + self.sizes.map_or(0, |size| size + 4)
    }

    /// Whether there are more in the grid.
    fn lack(&self) -> bool {
        self.next < self.grid.iter().product()
    }

    fn skip(&mut self, count: u64) {
        self.next = self.next.saturating_add(count);
    }

    /// The elements that a block begins with, as many as `count`.
    fn take(&mut self, block: &[u8], count: u64) -> Option<()> {
        let width = self.width();
        let block = block.get(..usize::try_from(count).ok()?.checked_mul(width)?)?;
        for element in block.chunks_exact(width) {
            let (address, rest) = element.split_at(self.addresses);
            let address = number(address);
            if self.lack() && address != UNDEF_ADDR {
                let place = self.sizes.map_or(
                    ChunkPlace {
                        address,
                        bytes: self.bytes,
                        mask: 0,
                    },
                    |size| ChunkPlace {
                        address,
                        bytes: number(&rest[..size]),
                        mask: number(&rest[size..]) as u32,
                    },
                );
                self.places.insert(self.place(), place);
            }
            self.next += 1;
        }
        Some(())
    }

    /// Where in the grid the next element is; the last axis counts fastest.
    fn place(&self) -> Vec<u64> {
        let mut rest = self.next;
        let along = |count: &u64| {
            let along = rest % count;
            rest /= count;
            along
        };
        let mut place: Vec<u64> = self.grid.iter().rev().map(along).collect();
        place.reverse();
        place
    }
}

/// An array of fixed length.
pub(super) fn fixed(
    objects: &mut Objects,
    address: u64,
    bytes: u64,
    grid: &[u64],
) -> Option<Places> {
    if address == UNDEF_ADDR {
        return Some(BTreeMap::new());
    }
    let context = objects.context;
    let header =
        FixedArrayHeader::decode(&objects.read_block(address, HEADER_BYTES).ok()?, &context)
            .ok()?;
    let addresses = usize::from(context.sizeof_addr);
    let is_filtered = header.client_id == FA_CLIENT_FILT_CHUNK;
    let mut elements = Elements::new(
        addresses,
        usize::from(header.element_size),
        is_filtered,
        bytes,
        grid,
    )?;
    if header.data_blk_addr == UNDEF_ADDR {
        return Some(elements.places);
    }
    if header.num_elmts > MAX_CHUNKS {
        return None;
    }
    let prefix = PREFIX_BYTES + addresses;
    if !header.is_paged() {
        let length = prefix + header.num_elmts as usize * elements.width();
        let block = objects.checked(header.data_blk_addr, length)?;
        elements.take(block.get(prefix..)?, header.num_elmts)?;
        return Some(elements.places);
    }
    let (pages, in_page) = (header.npages(), header.dblk_page_nelmts());
    let prefix = prefix + (pages as usize).div_ceil(8) + CHECKSUM_BYTES;
    let block = objects.read_block(header.data_blk_addr, prefix).ok()?;
    let written = FixedArrayPagedPrefix::decode(&block, &context, pages).ok()?;
    let stride = in_page
        .checked_mul(elements.width() as u64)?
        .checked_add(CHECKSUM_BYTES as u64)?;
    for page in 0..pages {
        let count = in_page.min(header.num_elmts - page * in_page);
        if !written.page_initialized(page as usize) {
            elements.skip(count);
            continue;
        }
        let place =
            (header.data_blk_addr + prefix as u64).checked_add(page.checked_mul(stride)?)?;
        let block = objects.checked(place, count as usize * elements.width())?;
        elements.take(&block, count)?;
    }
    Some(elements.places)
}

/// An array that grows: elements in its index block, then in data blocks, then in data blocks of
/// super blocks, each larger than those before.
pub(super) fn extensible(
    objects: &mut Objects,
    address: u64,
    parameters: &EarrayParams,
    bytes: u64,
    grid: &[u64],
) -> Option<Places> {
    if address == UNDEF_ADDR {
        return Some(BTreeMap::new());
    }
    let context = objects.context;
    let header =
        ExtensibleArrayHeader::decode(&objects.read_block(address, HEADER_BYTES).ok()?, &context)
            .ok()?;
    let shape = EaGeometry::new(
        parameters.idx_blk_elmts,
        parameters.data_blk_min_elmts,
        parameters.sup_blk_min_data_ptrs,
        parameters.max_nelmts_bits,
        parameters.max_dblk_page_nelmts_bits,
    )
    .ok()?;
    let addresses = usize::from(context.sizeof_addr);
    let is_filtered = header.class_id == EA_CLS_FILT_CHUNK;
    let mut elements = Elements::new(
        addresses,
        usize::from(header.raw_elmt_size),
        is_filtered,
        bytes,
        grid,
    )?;
    if header.idx_blk_addr == UNDEF_ADDR {
        return Some(elements.places);
    }
    let prefix = PREFIX_BYTES + addresses;
    let direct = shape.idx_blk_elmts as usize * elements.width();
    let length = prefix + direct + (shape.ndblk_addrs + shape.nsblk_addrs) * addresses;
    let block = objects.checked(header.idx_blk_addr, length)?;
    elements.take(block.get(prefix..)?, shape.idx_blk_elmts)?;
    let pointers: Vec<u64> = block
        .get(prefix + direct..length)?
        .chunks_exact(addresses)
        .map(number)
        .collect();
    let (data, supers) = pointers.split_at_checked(shape.ndblk_addrs)?;
    // A data block says where in the array it is, in as many bytes as that takes.
    let data_prefix =
        shape.dblk_prefix_size(context.sizeof_addr, parameters.max_nelmts_bits) - CHECKSUM_BYTES;
    let mut array = GrowingArray {
        objects,
        shape: &shape,
        elements,
        data_prefix,
        addresses,
    };
    for (level, info) in shape.sblk.iter().enumerate() {
        if !array.elements.lack() {
            break;
        }
        if level < shape.iblock_nsblks {
            let blocks = data
                .get(info.start_dblk as usize..)?
                .get(..info.ndblks as usize)?;
            array.take_blocks(level, info, blocks, &[])?;
        } else {
            let address = *supers.get(level - shape.iblock_nsblks)?;
            array.take_super_block(level, info, address)?;
        }
    }
    Some(array.elements.places)
}

/// An extensible array whose blocks are read one after the other.
struct GrowingArray<'a, 'g> {
    objects: &'a mut Objects,
    shape: &'a EaGeometry,
    elements: Elements<'g>,
    /// Bytes before the elements of a data block.
    data_prefix: usize,
    /// Bytes of an address.
    addresses: usize,
}

impl GrowingArray<'_, '_> {
    /// The data blocks that a super block leads to.
    fn take_super_block(&mut self, level: usize, info: &EaSblkInfo, address: u64) -> Option<()> {
        if address == UNDEF_ADDR {
            self.elements
                .skip(info.ndblks.checked_mul(info.dblk_nelmts)?);
            return Some(());
        }
        let bitmap = info.ndblks as usize * self.shape.dblk_page_init_size(level);
        let start = self.data_prefix + bitmap;
        let length = start + info.ndblks as usize * self.addresses;
        let block = self.objects.checked(address, length)?;
        let written = block.get(self.data_prefix..start)?;
        let blocks: Vec<u64> = block
            .get(start..length)?
            .chunks_exact(self.addresses)
            .map(number)
            .collect();
        self.take_blocks(level, info, &blocks, written)
    }

    /// The elements of data blocks. `written`: which of their pages were, a bit each.
    fn take_blocks(
        &mut self,
        level: usize,
        info: &EaSblkInfo,
        blocks: &[u64],
        written: &[u8],
    ) -> Option<()> {
        let pages = self.shape.npages(level);
        for (index, address) in blocks.iter().enumerate() {
            if !self.elements.lack() {
                break;
            }
            if *address == UNDEF_ADDR {
                self.elements.skip(info.dblk_nelmts);
            } else if pages == 0 {
                let length = self.data_prefix + info.dblk_nelmts as usize * self.elements.width();
                let block = self.objects.checked(*address, length)?;
                let own = block.get(self.data_prefix..)?;
                self.elements.take(own, info.dblk_nelmts)?;
            } else {
                // One row of bits over all data blocks, the highest bit of a byte first.
                let first = index * pages as usize;
                let is_written = |page: u64| {
                    let bit = first + page as usize;
                    Some(written.get(bit / 8)? & (0x80 >> (bit % 8)) != 0)
                };
                self.take_pages(*address, pages, is_written)?;
            }
        }
        Some(())
    }

    /// The elements of a data block in pages.
    fn take_pages(
        &mut self,
        address: u64,
        pages: u64,
        is_written: impl Fn(u64) -> Option<bool>,
    ) -> Option<()> {
        let in_page = self.shape.dblk_page_nelmts;
        let first = address.checked_add((self.data_prefix + CHECKSUM_BYTES) as u64)?;
        let stride = self.shape.dblk_page_size(self.elements.width()) as u64;
        for page in 0..pages {
            if !is_written(page)? {
                self.elements.skip(in_page);
                continue;
            }
            let place = first.checked_add(page.checked_mul(stride)?)?;
            let length = in_page as usize * self.elements.width();
            let block = self.objects.checked(place, length)?;
            self.elements.take(&block, in_page)?;
        }
        Some(())
    }
}
