//! EDF, the ESRF data format: a header `{ Key = value ; … }` padded to a multiple of 512 bytes,
//! then the numbers.

use super::unpack;
use nodectl_formats::{Array, Info};
use nodectl_types::Scalar;
use std::collections::BTreeMap;

/// The longest header that is searched for its end.
const MAX_HEADER: usize = 1 << 20;

/// The first image of a file.
pub(super) fn decode(bytes: &[u8]) -> Result<Array, String> {
    let head = &bytes[..bytes.len().min(MAX_HEADER)];
    let end = head
        .windows(2)
        .position(|pair| pair == b"}\n")
        .ok_or("it has no EDF header")?;
    let header = String::from_utf8_lossy(&head[..end]);
    let fields: BTreeMap<String, String> = header
        .trim_start()
        .trim_start_matches('{')
        .split(';')
        .filter_map(|field| field.split_once('='))
        .map(|(key, value)| (key.trim().to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let field = |name: &str| fields.get(name).map(String::as_str);
    let extent = |name: &str| {
        field(name)
            .and_then(|text| text.parse::<u64>().ok())
            .ok_or(format!("{name} is missing"))
    };
    let shape = vec![extent("dim_2")?, extent("dim_1")?];
    let name = field("datatype").ok_or("DataType is missing")?;
    let scalar = scalar(name).ok_or(format!("its DataType {name} is not supported"))?;
    let info = Info { scalar, shape };
    let start = end + 2;
    let length = info
        .bytes()
        .and_then(|length| usize::try_from(length).ok())
        .ok_or("its extents are too large")?;
    let rest = &bytes[start.min(bytes.len())..];
    let mut data = match field("compression").map(str::to_ascii_lowercase).as_deref() {
        None | Some("" | "none" | "nospecificvalue") => rest[..rest.len().min(length)].to_vec(),
        Some(name) if name.contains("gzip") => unpack::gzip(rest, length)?,
        Some(name) if name.starts_with('z') => unpack::zlib(rest, length)?,
        Some(name) => {
            return Err(format!(
                "its compression {name} is not supported; gzip and zlib are"
            ));
        }
    };
    if data.len() < length {
        return Err(format!("it is cut short: {} of {length} bytes", data.len()));
    }
    if field("byteorder").is_some_and(|order| order.eq_ignore_ascii_case("highbytefirst")) {
        data.chunks_mut(scalar.bytes()).for_each(<[u8]>::reverse);
    }
    Ok(Array { info, bytes: data })
}

fn scalar(name: &str) -> Option<Scalar> {
    Some(match name.to_ascii_lowercase().as_str() {
        "signedbyte" => Scalar::I8,
        "unsignedbyte" => Scalar::U8,
        "signedshort" => Scalar::I16,
        "unsignedshort" => Scalar::U16,
        "signedinteger" | "signedlong" => Scalar::I32,
        "unsignedinteger" | "unsignedlong" => Scalar::U32,
        "signed64" => Scalar::I64,
        "unsigned64" => Scalar::U64,
        "floatvalue" | "float" | "real" => Scalar::F32,
        "doublevalue" | "double" => Scalar::F64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    fn file(order: &str, data: &[u8]) -> Vec<u8> {
        let mut header = format!(
            "{{\nDim_1 = 3 ;\nDim_2 = 2 ;\nDataType = UnsignedShort ;\nByteOrder = {order} ;\n"
        );
        while header.len() < 510 {
            header.push(' ');
        }
        header.push_str("}\n");
        [header.as_bytes(), data].concat()
    }

    #[test]
    fn both_byte_orders() {
        let little: Vec<u8> = (1..7u16).flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = (1..7u16).flat_map(u16::to_be_bytes).collect();
        for (order, data) in [("LowByteFirst", &little), ("HighByteFirst", &big)] {
            let array = decode(&file(order, data)).expect("an image");
            assert_eq!(
                (array.info.shape, array.bytes),
                (vec![2, 3], little.clone())
            );
        }
    }

    #[test]
    fn compressed_numbers() {
        let plain: Vec<u8> = (1..7u16).flat_map(u16::to_le_bytes).collect();
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&plain).expect("memory");
        let packed = encoder.finish().expect("memory");
        let named = "LowByteFirst ;\nCompression = GzipCompression";
        assert_eq!(
            decode(&file(named, &packed)).expect("an image").bytes,
            plain
        );
        assert!(decode(&file(named, &packed[..12])).is_err());
    }

    #[test]
    fn a_file_that_is_cut_short() {
        assert!(
            decode(&file("LowByteFirst", &[0; 11]))
                .expect_err("cut")
                .contains("11 of 12 bytes")
        );
        assert!(decode(b"{ nothing").is_err());
    }

    #[test]
    fn damaged_headers_do_no_harm() {
        let whole = file("LowByteFirst", &[7; 12]);
        super::super::damage::check(&whole, 70, 1 << 20, decode);
    }
}
