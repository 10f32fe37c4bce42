//! What a node has and what a task needs: cores, memory, GPU share and user-named quantities.

use super::units::{counted, format_bytes};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Amounts of each resource. CPU, GPU and named resources are in thousandths, so that shares are
/// exact; memory is in bytes. As a need, zero means "none needed"; as a capacity, "none here".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    pub cpu_milli: u32,
    pub memory_bytes: u64,
    pub gpu_milli: u32,
    /// User-named, e.g. `licenses = 2`. Thousandths.
    pub named_milli: BTreeMap<String, u32>,
}

impl Resources {
    /// One core and nothing else: what a task needs unless it says otherwise.
    pub fn one_core() -> Self {
        Self {
            cpu_milli: 1000,
            ..Self::default()
        }
    }

    /// The first resource of which `self` has less than `need`, by name.
    pub fn lacks(&self, need: &Resources) -> Option<String> {
        if self.cpu_milli < need.cpu_milli {
            return Some("cpus".into());
        }
        if self.memory_bytes < need.memory_bytes {
            return Some("memory".into());
        }
        if self.gpu_milli < need.gpu_milli {
            return Some("gpus".into());
        }
        let named = need
            .named_milli
            .iter()
            .find(|(name, amount)| self.named(name) < **amount);
        named.map(|(name, _)| name.clone())
    }

    /// How much there is of the resource of this name, as `lacks` has it, in words: `2 cores`,
    /// `1 GPU`, `8.0 GiB of memory`, `2 of licenses`.
    pub fn amount(&self, name: &str) -> String {
        let amount = f64::from(self.milli(name)) / 1000.0;
        match name {
            "memory" => format!("{} of memory", format_bytes(self.memory_bytes)),
            "cpus" => counted(amount, "core"),
            "gpus" => counted(amount, "GPU"),
            // A user's own word, of which nobody knows the plural.
            _ => format!("{amount} of {name}"),
        }
    }

    /// Why none of these has room for `need`, as a sentence.
    pub fn all_lack(all: &[&Resources], need: &Resources) -> Option<String> {
        let name = all.first()?.lacks(need)?;
        let most = all.iter().max_by_key(|resources| match name.as_str() {
            "memory" => resources.memory_bytes,
            _ => u64::from(resources.milli(&name)),
        })?;
        let needs = need.amount(&name);
        Some(match most.lacks(need) {
            Some(lacking) if lacking == name => {
                format!(
                    "a task needs {needs}, and no node has more than {}",
                    most.amount(&name)
                )
            }
            _ => format!("no node with {needs} has the rest of what a task needs"),
        })
    }

    fn milli(&self, name: &str) -> u32 {
        match name {
            "cpus" => self.cpu_milli,
            "gpus" => self.gpu_milli,
            _ => self.named(name),
        }
    }

    /// Whether `need` fits into `self`.
    pub fn fits(&self, need: &Resources) -> bool {
        self.lacks(need).is_none()
    }

    /// Takes `need` away. The caller has checked `fits`.
    pub fn take(&mut self, need: &Resources) {
        self.cpu_milli -= need.cpu_milli;
        self.memory_bytes -= need.memory_bytes;
        self.gpu_milli -= need.gpu_milli;
        for (name, amount) in &need.named_milli {
            *self.named_milli.get_mut(name).expect("fits() found it") -= amount;
        }
    }

    /// Puts back what `take` took.
    pub fn give(&mut self, need: &Resources) {
        self.cpu_milli += need.cpu_milli;
        self.memory_bytes += need.memory_bytes;
        self.gpu_milli += need.gpu_milli;
        for (name, amount) in &need.named_milli {
            *self.named_milli.entry(name.clone()).or_default() += amount;
        }
    }

    /// So many needs together.
    pub fn times(mut self, count: u32) -> Self {
        self.cpu_milli = self.cpu_milli.saturating_mul(count);
        self.memory_bytes = self.memory_bytes.saturating_mul(u64::from(count));
        self.gpu_milli = self.gpu_milli.saturating_mul(count);
        for amount in self.named_milli.values_mut() {
            *amount = amount.saturating_mul(count);
        }
        self
    }

    /// At most what `limit` has of each.
    pub fn at_most(&self, limit: &Resources) -> Resources {
        let named = self
            .named_milli
            .iter()
            .map(|(name, amount)| (name.clone(), (*amount).min(limit.named(name))));
        Resources {
            cpu_milli: self.cpu_milli.min(limit.cpu_milli),
            memory_bytes: self.memory_bytes.min(limit.memory_bytes),
            gpu_milli: self.gpu_milli.min(limit.gpu_milli),
            named_milli: named.collect(),
        }
    }

    /// How many times `need` fits into `self` at once. Needs of nothing are bounded by one per
    /// hundredth of a core.
    pub fn slots(&self, need: &Resources) -> u32 {
        let mut slots = u64::from(self.cpu_milli) / u64::from(need.cpu_milli.max(10));
        if let Some(fitting) = self.memory_bytes.checked_div(need.memory_bytes) {
            slots = slots.min(fitting);
        }
        if need.gpu_milli > 0 {
            slots = slots.min(u64::from(self.gpu_slots(need.gpu_milli)));
        }
        for (name, amount) in need.named_milli.iter().filter(|(_, amount)| **amount > 0) {
            slots = slots.min(u64::from(self.named(name) / amount));
        }
        u32::try_from(slots).unwrap_or(u32::MAX)
    }

    /// A fraction of a GPU never spans two: each whole card holds floor(1000 / need) of them.
    fn gpu_slots(&self, need_milli: u32) -> u32 {
        if need_milli >= 1000 {
            self.gpu_milli / need_milli
        } else {
            self.gpu_milli / 1000 * (1000 / need_milli)
        }
    }

    fn named(&self, name: &str) -> u32 {
        self.named_milli.get(name).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_lack_is_told_with_how_much_there_is() {
        let node = |cpu_milli, gib: u64| Resources {
            cpu_milli,
            memory_bytes: gib << 30,
            ..Resources::default()
        };
        let told = |all: &[Resources], need: &Resources| {
            Resources::all_lack(&all.iter().collect::<Vec<_>>(), need)
        };
        let (wide, deep) = (node(8_000, 4), node(2_000, 64));
        let all = [wide, deep];
        assert_eq!(
            told(&all, &node(16_500, 1)).unwrap(),
            "a task needs 16.5 cores, and no node has more than 8 cores"
        );
        assert_eq!(
            told(&all[..1], &node(1_000, 8)).unwrap(),
            "a task needs 8.0 GiB of memory, and no node has more than 4.0 GiB of memory"
        );
        assert_eq!(
            told(&all, &node(4_000, 8)).unwrap(),
            "no node with 8.0 GiB of memory has the rest of what a task needs"
        );
        let mut licensed = node(1_000, 1);
        licensed.named_milli.insert("licenses".into(), 2_000);
        assert_eq!(
            told(&all, &licensed).unwrap(),
            "a task needs 2 of licenses, and no node has more than 0 of licenses"
        );
        let mut on_gpu = node(1_000, 1);
        on_gpu.gpu_milli = 1_000;
        assert_eq!(
            told(&[node(1_000, 1)], &on_gpu).unwrap(),
            "a task needs 1 GPU, and no node has more than 0 GPUs"
        );
        assert_eq!(told(&all, &node(1_000, 1)), None);
        assert_eq!(told(&[], &node(1_000, 1)), None);
    }
}
