//! What an op reads and writes, and the rules all ops share: views have the kind and length that
//! the op needs, lie inside their buffers, and what is written overlaps nothing else. The engines
//! rely on it for memory safety.

use super::buffer::{BufferView, ElementKind};

/// Indices in shaders have 32 bits, and step beyond the end by less than 2³¹.
const MAX_ELEMENTS: u64 = 1 << 31;

/// The views of an op, checked one by one as they are added.
#[derive(Default)]
pub struct OpAccess {
    reads: Vec<Used>,
    /// Read by one thread before the same thread writes there: may be the very view that is
    /// written.
    in_place: Vec<Used>,
    writes: Vec<Used>,
}

struct Used {
    name: &'static str,
    view: BufferView,
}

impl OpAccess {
    /// An input of at least `len` elements.
    pub fn read(
        mut self,
        name: &'static str,
        view: &BufferView,
        kind: ElementKind,
        len: u64,
    ) -> Result<Self, String> {
        self.reads.push(checked(name, view, &[kind], len)?);
        Ok(self)
    }

    /// An input that may be of several kinds.
    pub fn read_any(
        mut self,
        name: &'static str,
        view: &BufferView,
        kinds: &[ElementKind],
        len: u64,
    ) -> Result<Self, String> {
        self.reads.push(checked(name, view, kinds, len)?);
        Ok(self)
    }

    /// An input that may be exactly the view of an output.
    pub fn read_in_place(
        mut self,
        name: &'static str,
        view: &BufferView,
        kind: ElementKind,
        len: u64,
    ) -> Result<Self, String> {
        self.in_place.push(checked(name, view, &[kind], len)?);
        Ok(self)
    }

    /// An output, or what is read and written.
    pub fn write(
        mut self,
        name: &'static str,
        view: &BufferView,
        kind: ElementKind,
        len: u64,
    ) -> Result<Self, String> {
        self.writes.push(checked(name, view, &[kind], len)?);
        Ok(self)
    }

    /// An output that may be of several kinds.
    pub fn write_any(
        mut self,
        name: &'static str,
        view: &BufferView,
        kinds: &[ElementKind],
        len: u64,
    ) -> Result<Self, String> {
        self.writes.push(checked(name, view, kinds, len)?);
        Ok(self)
    }

    /// Checks that nothing written overlaps anything else.
    pub fn check(self) -> Result<DisjointAccess, String> {
        for (index, write) in self.writes.iter().enumerate() {
            let others = self.reads.iter().chain(&self.writes[index + 1..]);
            let in_place = self
                .in_place
                .iter()
                .filter(|read| !read.view.is_same(&write.view));
            if let Some(other) = others
                .chain(in_place)
                .find(|other| other.view.overlaps(&write.view))
            {
                return Err(format!(
                    "`{}` is written but overlaps `{}`; hint: give it memory of its own",
                    write.name, other.name
                ));
            }
        }
        Ok(DisjointAccess(self))
    }
}

/// The views of an op, of which `OpAccess::check` has proved that none that is written overlaps
/// another, but for inputs that are exactly an output.
pub struct DisjointAccess(OpAccess);

impl DisjointAccess {
    pub fn views(&self) -> impl Iterator<Item = &BufferView> {
        let OpAccess {
            reads,
            in_place,
            writes,
        } = &self.0;
        reads
            .iter()
            .chain(in_place)
            .chain(writes)
            .map(|used| &used.view)
    }

    /// Whether this is a view that is read, and not written as well.
    pub fn is_only_read(&self, view: &BufferView) -> bool {
        let mut reads = self.0.reads.iter().chain(&self.0.in_place);
        reads.any(|read| read.view.is_same(view))
            && !self.0.writes.iter().any(|write| write.view.overlaps(view))
    }

    /// The numbers of the written views that are this one: several only where they are empty.
    pub fn written(&self, view: &BufferView) -> impl Iterator<Item = usize> {
        let writes = self.0.writes.iter().enumerate();
        writes
            .filter(|(_, write)| write.view.is_same(view))
            .map(|(number, _)| number)
    }
}

fn checked(
    name: &'static str,
    view: &BufferView,
    kinds: &[ElementKind],
    len: u64,
) -> Result<Used, String> {
    if !kinds.contains(&view.kind) {
        let wanted: Vec<String> = kinds.iter().map(ElementKind::to_string).collect();
        return Err(format!(
            "`{name}` is {}, not {}",
            view.kind,
            wanted.join(" or ")
        ));
    }
    if view.len < len {
        return Err(format!(
            "`{name}` has {} elements where {len} are needed",
            view.len
        ));
    }
    if view.len > MAX_ELEMENTS {
        return Err(format!(
            "`{name}` has {} elements, more than {MAX_ELEMENTS}; hint: cut the work",
            view.len
        ));
    }
    if !view.is_inside() {
        let (kind, bytes) = (view.kind, view.buffer.bytes());
        return Err(format!(
            "`{name}`: {} {kind} from element {} on are not inside a buffer of {bytes} bytes",
            view.len, view.offset
        ));
    }
    Ok(Used {
        name,
        view: view.clone(),
    })
}

/// The product of sizes that a caller gave, as a length; an error rather than an overflow.
pub fn elements(sizes: &[u32]) -> Result<u64, String> {
    let product = sizes
        .iter()
        .try_fold(1u64, |product, size| product.checked_mul(u64::from(*size)));
    product
        .filter(|product| *product <= MAX_ELEMENTS)
        .ok_or_else(|| format!("{sizes:?} is too large; hint: cut the work"))
}
