//! Where the Debye-Scherrer rings of well-known powders are: spacings of cubic, hexagonal and
//! lamellar lattices, and which of them reflect (International Tables A); of others, as pyFAI lists
//! them.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// A powder that detectors are calibrated with, by pyFAI's name of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibrant {
    name: &'static str,
    rings: CalibrantRings,
}

/// Where its rings come from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum CalibrantRings {
    Lattice(CrystalLattice),
    /// Lines with a spacing in Å and, where they are known, Miller indices.
    Listed(&'static str),
}

/// A lattice, its constants in nm.
#[derive(Clone, Copy, Debug, PartialEq)]
enum CrystalLattice {
    Primitive(f64),
    FaceCentred(f64),
    Diamond(f64),
    /// Space group R-3c in hexagonal axes: a and c.
    Corundum(f64, f64),
    /// Layers at this distance.
    Lamellar(f64),
}

/// Rings are listed down to this share of the longest lattice constant.
const LEAST_SHARE: f64 = 1.0 / 40.0;

/// A ring: its Miller indices and lattice spacing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ring {
    /// None where they are not known.
    pub hkl: Option<[i32; 3]>,
    pub d_nm: f64,
}

/// NIST's certificates at 22.5 °C have the constants of SRM 660c, 674b and 640f; the others are
/// those that pyFAI takes, of AgBh from doi:10.1107/S0021889899012388.
const LATTICES: [(&str, CrystalLattice); 12] = [
    ("LaB6", CrystalLattice::Primitive(0.415_682_6)),
    ("CeO2", CrystalLattice::FaceCentred(0.541_165_3)),
    ("Si", CrystalLattice::Diamond(0.543_114_4)),
    ("Al", CrystalLattice::FaceCentred(0.404_95)),
    ("Au", CrystalLattice::FaceCentred(0.407_82)),
    ("NaCl", CrystalLattice::FaceCentred(0.564_01)),
    ("Ni", CrystalLattice::FaceCentred(0.352_387)),
    ("Pt", CrystalLattice::FaceCentred(0.392_31)),
    ("diamond", CrystalLattice::Diamond(0.356_68)),
    ("AgBh", CrystalLattice::Lamellar(5.838)),
    ("alpha_Al2O3", CrystalLattice::Corundum(0.475_70, 1.298_77)),
    ("Cr2O3", CrystalLattice::Corundum(0.495_90, 1.359_59)),
];

/// Names, each with the lines of its rings.
const LISTED: &str = include_str!("calibrants.txt");

/// The calibrants of `LISTED`.
fn listed() -> impl Iterator<Item = Calibrant> {
    let is_name = |line: &str| line.starts_with(|c: char| c.is_ascii_alphabetic());
    let mut rest = LISTED;
    std::iter::from_fn(move || {
        loop {
            let (line, after) = rest.split_once('\n')?;
            rest = after;
            if is_name(line) {
                let lines = after.split_inclusive('\n');
                let length = lines.take_while(|line| !is_name(line)).map(str::len).sum();
                return Some(Calibrant {
                    name: line,
                    rings: CalibrantRings::Listed(&after[..length]),
                });
            }
        }
    })
}

fn listed_rings(lines: &str, least_d_nm: f64) -> Vec<Ring> {
    let ring = |line: &str| {
        let mut words = line.split(' ');
        let d_nm = words.next()?.parse::<f64>().ok()? / 10.0;
        let mut index = || words.next()?.parse().ok();
        let hkl = (|| Some([index()?, index()?, index()?]))();
        (d_nm >= least_d_nm).then_some(Ring { hkl, d_nm })
    };
    let mut rings: Vec<Ring> = lines.lines().filter_map(ring).collect();
    rings.sort_by(|one, other| other.d_nm.total_cmp(&one.d_nm));
    rings
}

impl Serialize for Calibrant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

impl<'de> Deserialize<'de> for Calibrant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::from_name(&name)
            .ok_or_else(|| D::Error::custom(format!("the rings of `{name}` are not known")))
    }
}

impl Calibrant {
    pub fn all() -> impl Iterator<Item = Self> {
        let computed = LATTICES.into_iter().map(|(name, lattice)| Self {
            name,
            rings: CalibrantRings::Lattice(lattice),
        });
        computed.chain(listed())
    }

    pub fn name(self) -> &'static str {
        self.name
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|calibrant| calibrant.name == name)
    }

    /// Rings by falling spacing, down to `least_d_nm`; those that coincide are one.
    pub fn rings(self, least_d_nm: f64) -> Vec<Ring> {
        let lattice = match self.rings {
            CalibrantRings::Lattice(lattice) => lattice,
            CalibrantRings::Listed(lines) => return listed_rings(lines, least_d_nm),
        };
        let [a, c] = lattice.constants_nm();
        let least = least_d_nm.max(a.max(c) * LEAST_SHARE);
        let most = |constant: f64| (constant * (1.0 + 1e-9) / least * 2.0 / 3f64.sqrt()) as u32;
        let mut rings: Vec<Ring> = Vec::new();
        for h in 0..=most(a) {
            for k in 0..=h {
                for l in 0..=lattice.last_index(k, most(c)) {
                    let hkl = [h, k, l];
                    let d_nm = lattice.spacing_nm(hkl);
                    let is_seen = d_nm.is_finite() && d_nm >= least * (1.0 - 1e-9);
                    let is_known = || rings.iter().any(|ring| (ring.d_nm - d_nm).abs() < 1e-9);
                    if is_seen && lattice.reflects(hkl) && !is_known() {
                        rings.push(Ring {
                            hkl: Some(hkl.map(|index| index as i32)),
                            d_nm,
                        });
                    }
                }
            }
        }
        rings.sort_by(|one, other| other.d_nm.total_cmp(&one.d_nm));
        rings
    }
}

impl CrystalLattice {
    /// a and c.
    fn constants_nm(self) -> [f64; 2] {
        match self {
            Self::Primitive(a) | Self::FaceCentred(a) | Self::Diamond(a) => [a, a],
            Self::Corundum(a, c) => [a, c],
            Self::Lamellar(c) => [0.0, c],
        }
    }

    /// The largest l beside an index k: of cubic lattices the order of indices does not matter.
    fn last_index(self, k: u32, most: u32) -> u32 {
        match self {
            Self::Primitive(_) | Self::FaceCentred(_) | Self::Diamond(_) => k,
            Self::Corundum(..) | Self::Lamellar(_) => most,
        }
    }

    /// Infinite for 000.
    fn spacing_nm(self, hkl: [u32; 3]) -> f64 {
        let [h, k, l] = hkl.map(f64::from);
        match self {
            Self::Primitive(a) | Self::FaceCentred(a) | Self::Diamond(a) => {
                a / (h * h + k * k + l * l).sqrt()
            }
            Self::Corundum(a, c) => {
                let across = 4.0 / 3.0 * (h * h + h * k + k * k) / (a * a);
                (across + l * l / (c * c)).sqrt().recip()
            }
            Self::Lamellar(c) => c / l,
        }
    }

    /// The extinction rules, those of R-3c for one of the two orders of h and k.
    fn reflects(self, [h, k, l]: [u32; 3]) -> bool {
        let is_face_centred = h % 2 == k % 2 && k % 2 == l % 2;
        match self {
            Self::Primitive(_) => true,
            Self::FaceCentred(_) => is_face_centred,
            Self::Diamond(_) => is_face_centred && (h % 2 == 1 || (h + k + l).is_multiple_of(4)),
            Self::Corundum(..) => {
                let is_obverse =
                    (2 * h + k + l).is_multiple_of(3) || (h + 2 * k + l).is_multiple_of(3);
                is_obverse && (k > 0 || l.is_multiple_of(2))
            }
            Self::Lamellar(_) => (h, k) == (0, 0),
        }
    }
}

impl Ring {
    /// The place on a radial axis of this unit (pyFAI's names); None where that needs a wavelength
    /// or has no formula here.
    pub fn position(&self, unit: &str, wavelength_m: Option<f64>) -> Option<f64> {
        let q = 2.0 * std::f64::consts::PI / self.d_nm;
        let two_theta = || {
            let sine = wavelength_m? * 1e9 / (2.0 * self.d_nm);
            (sine <= 1.0).then(|| 2.0 * sine.asin())
        };
        match unit {
            "q_nm^-1" => Some(q),
            "q_A^-1" => Some(q / 10.0),
            "2th_rad" => two_theta(),
            "2th_deg" => two_theta().map(f64::to_degrees),
            "d*2_nm^-2" => Some(self.d_nm.powi(-2)),
            "d*2_A^-2" => Some((self.d_nm * 10.0).powi(-2)),
            "d_nm" => Some(self.d_nm),
            "d_A" => Some(self.d_nm * 10.0),
            _ => None,
        }
    }
}
