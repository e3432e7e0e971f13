//! `cp.async.bulk.tensor`: bulk copies of boxes of a tensor, which a tensor map describes.
//!
//! A copy to shared memory counts all bytes of the box at its mbarrier, also the bytes outside the tensor,
//! which become zeros. A copy to global memory leaves out the bytes past the tensor's end; it must not begin before the tensor.

use super::bulk::{start_load, start_store};
use super::memory::{address, base_address};
use super::{Address, for_each_lane, lanes};
use crate::bulk::Place;
use crate::context::Context;
use crate::decode::{Decoded, Decoder};
use crate::error::{Rule, Violation};
use crate::memory::PARAMETERS;
use crate::registers::{Reg, Row};
use crate::syntax::Operand;
use crate::tensor_map::{MAP_ALIGNMENT, MAP_BYTES, TensorMap};

/// Alignment of a box in shared memory.
const BOX_ALIGNMENT: u32 = 128;

pub(super) fn decode(d: &mut Decoder) -> Decoded {
    if d.opcode() == "prefetch.tensormap" {
        return prefetch(d);
    }
    let Some(rest) = d.opcode().strip_prefix("cp.async.bulk.tensor.") else {
        return Ok(None);
    };
    let Some((rank, modifiers)) = rest.split_once("d.") else {
        return Ok(None);
    };
    let Ok(rank @ 1..=5) = rank.parse::<u32>() else {
        return Ok(None);
    };
    d.require_target(90)?;
    // A policy of the cache has no effect.
    let (modifiers, hints) = match modifiers.strip_suffix(".L2::cache_hint") {
        Some(modifiers) => (modifiers, 1),
        None => (modifiers, 0),
    };
    let operands = d.statement.operands.len();
    let operands = &d.statement.operands[..operands.saturating_sub(hints)];
    match (modifiers.replace(".tile.", ".").as_str(), operands) {
        (
            "shared::cluster.global.mbarrier::complete_tx::bytes"
            | "shared::cta.global.mbarrier::complete_tx::bytes",
            [to, from, mbarrier],
        ) => {
            let (to, mbarrier) = (address(d, to, true)?, address(d, mbarrier, true)?);
            let from = TensorBox::decode(d, from, rank)?;
            lanes!(move |c| {
                let (to, mbarrier, from) = (to.read(c)?, mbarrier.read(c)?, from.read(c)?);
                for_each_lane(c.active, |lane| {
                    let (map, place) = from.of_lane(c, lane)?;
                    let (to, bytes) = (to[lane], map.box_bytes());
                    start_load(c, lane, to, place, bytes, BOX_ALIGNMENT, mbarrier[lane])
                })
            })
        }
        ("global.shared::cta.bulk_group", [to, from]) => {
            let from = address(d, from, true)?;
            let to = TensorBox::decode(d, to, rank)?;
            lanes!(move |c| {
                let (from, to) = (from.read(c)?, to.read(c)?);
                for_each_lane(c.active, |lane| {
                    let (map, place) = to.of_lane(c, lane)?;
                    if let Place::Box(_, coordinates) = &place
                        && let Some(&coordinate) = coordinates.iter().find(|c| **c < 0)
                    {
                        let rule = Rule::StoreBeforeTensor { coordinate };
                        return Err(Violation::at(rule, lane as u32, to.maps[lane]));
                    }
                    start_store(
                        c,
                        lane,
                        place,
                        from[lane],
                        map.box_bytes(),
                        BOX_ALIGNMENT,
                        false,
                    )
                })
            })
        }
        ("global.shared::cta.bulk_group", _) => Err("expected a tensor and an address".to_owned()),
        (modifiers, _) if modifiers.ends_with("mbarrier::complete_tx::bytes") => {
            Err("expected an address, a tensor and an mbarrier".to_owned())
        }
        _ => Ok(None),
    }
}

/// `[map]`: fetches a tensor map into a cache.
fn prefetch(d: &mut Decoder) -> Decoded {
    let [map] = d.operands()?;
    let map = address(d, map, false)?;
    d.require_target(90)?;
    lanes!(move |c| {
        let map = map.read(c)?;
        for_each_lane(c.active, |lane| read_map(c, lane, map[lane]).map(drop))
    })
}

/// The operand `[map, {coordinates}]`.
struct TensorBox {
    map: Address,
    coordinates: Vec<Reg<u32>>,
}

impl TensorBox {
    fn decode(d: &mut Decoder, operand: &Operand, rank: u32) -> Result<Self, String> {
        let Operand::Tensor(base, offset, coordinates) = operand else {
            return Err("expected a tensor map and coordinates".to_owned());
        };
        if coordinates.len() != rank as usize {
            let found = coordinates.len();
            return Err(format!("expected {rank} coordinates, found {found}"));
        }
        let coordinates: Result<_, _> = coordinates.iter().map(|c| d.source(c)).collect();
        Ok(TensorBox {
            map: base_address(d, base, *offset, false)?,
            coordinates: coordinates?,
        })
    }

    fn read(&self, c: &Context) -> Result<TensorBoxes, Box<Violation>> {
        let coordinates: Result<_, _> = self.coordinates.iter().map(|r| c.read(*r)).collect();
        Ok(TensorBoxes {
            maps: self.map.read(c)?,
            coordinates: coordinates?,
        })
    }
}

/// A [`TensorBox`] in all lanes.
struct TensorBoxes {
    maps: Row<u64>,
    coordinates: Vec<Row<u32>>,
}

impl TensorBoxes {
    /// The tensor map of a lane, and the box that the lane names.
    fn of_lane(&self, c: &Context, lane: usize) -> Result<(TensorMap, Place), Box<Violation>> {
        let address = self.maps[lane];
        let map = read_map(c, lane, address)?;
        if map.rank as usize != self.coordinates.len() {
            let what = "the tensor map has other dimensions than the copy";
            let rule = Rule::InvalidTensorMap { what };
            return Err(Violation::at(rule, lane as u32, address));
        }
        let mut coordinates = [0; 5];
        for (coordinate, row) in coordinates.iter_mut().zip(&self.coordinates) {
            *coordinate = row[lane].cast_signed();
        }
        Ok((map, Place::Box(Box::new(map), coordinates)))
    }
}

fn read_map(c: &Context, lane: usize, address: u64) -> Result<TensorMap, Box<Violation>> {
    let (lane, mut bytes) = (lane as u32, [0; MAP_BYTES]);
    // A map may lie in global memory or among the parameters.
    let offset = address.wrapping_sub(PARAMETERS) as usize;
    match c
        .launch
        .parameters
        .get(offset..offset.saturating_add(MAP_BYTES))
    {
        Some(map) if address.is_multiple_of(u64::from(MAP_ALIGNMENT)) => bytes.copy_from_slice(map),
        _ => c
            .launch
            .global
            .read(lane, address, MAP_ALIGNMENT, &mut bytes)?,
    }
    let map = TensorMap::decode(&bytes);
    map.map_err(|what| Violation::at(Rule::InvalidTensorMap { what }, lane, address))
}
