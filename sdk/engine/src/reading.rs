//! What a family says a checkpoint holds, in the spelling in which it is there.

use std::collections::HashSet;

use rialto_bridge::mapping::MTP_GROUP;
use rialto_bridge::{
    Bridge, Forms, MapOptions, Mapping, ModelSpec, MtpPolicy, RawConfig, StoredTensor, WeightMap,
};

use crate::Error;

/// Which side of a weight map an inventory is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    HuggingFace,
    Megatron,
}

/// A config, read so that it describes the checkpoint beside it.
pub(crate) struct Reading {
    pub(crate) options: MapOptions,
    pub(crate) spec: ModelSpec,
    pub(crate) map: WeightMap,
    pub(crate) mapping: Mapping,
    pub(crate) forms: Forms,
}

impl Reading {
    /// Multi-token prediction is part of it if any of it is there. `tensors` names the forms in which tensors shall be spelled
    /// that are not there yet.
    pub(crate) fn of(
        family: &dyn Bridge,
        config: &RawConfig,
        format: Format,
        inventory: &[StoredTensor],
        tensors: &[String],
    ) -> Result<Reading, Error> {
        let read = |options: MapOptions| -> Result<Reading, Error> {
            let spec = family.map_config(config, &options)?;
            let map = family.weight_map(&spec)?;
            let (mapping, forms) = mapping_of(&map, format, inventory, tensors)?;
            Ok(Reading {
                options,
                spec,
                map,
                mapping,
                forms,
            })
        };
        let reading = read(MapOptions::default())?;
        if reading.spec.dims.mtp_layers > 0 && !reading.holds_mtp(format, inventory) {
            return read(MapOptions {
                mtp: MtpPolicy::Absent,
                ..MapOptions::default()
            });
        }
        Ok(reading)
    }

    fn holds_mtp(&self, format: Format, inventory: &[StoredTensor]) -> bool {
        let names = names(inventory);
        match format {
            Format::Megatron => self.mapping.holds_mtp(&names),
            Format::HuggingFace => self.mapping.tensors().iter().any(|tensor| {
                self.mapping.rule(tensor.rule).group == MTP_GROUP
                    && names.contains(tensor.name.as_str())
            }),
        }
    }
}

/// The spelling in which an inventory has one side of a map.
pub(crate) fn forms_of(
    map: &WeightMap,
    format: Format,
    inventory: &[StoredTensor],
) -> Result<Forms, Error> {
    let (forms, names) = (Forms::own(map), names(inventory));
    Ok(match format {
        Format::HuggingFace => forms.of_tensors(map, &names)?,
        Format::Megatron => forms.of_params(map, &names)?,
    })
}

/// The map in the spelling in which an inventory has it, and what spelling that is; `tensors` as in [`Reading::of`].
fn mapping_of(
    map: &WeightMap,
    format: Format,
    inventory: &[StoredTensor],
    tensors: &[String],
) -> Result<(Mapping, Forms), Error> {
    let forms = forms_of(map, format, inventory)?.with_tensors(map, tensors)?;
    let mapping = map.resolve_as(&forms)?;
    let mapping = match format {
        Format::HuggingFace => mapping,
        // How long padded params are is the writer's choice, and needs no mesh to be read.
        Format::Megatron => mapping.padded_as(inventory),
    };
    Ok((mapping, forms))
}

fn names(inventory: &[StoredTensor]) -> HashSet<&str> {
    let names = inventory.iter().map(|stored| stored.name.as_str());
    names.collect()
}
