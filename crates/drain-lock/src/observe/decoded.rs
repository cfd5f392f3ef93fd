//! An object that is there though this version cannot read it. A watch of the kind itself would leave it out, and absent
//! it would be taken for deleted.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// An object of kind `K` as a watch tells it, readable or not.
#[derive(Debug, Clone)]
pub(super) struct Decoded<K> {
    metadata: ObjectMeta,
    /// The object, or what is wrong with it.
    pub(super) object: Result<K, Arc<str>>,
}

impl<K: Resource> From<K> for Decoded<K> {
    fn from(object: K) -> Self {
        Self {
            metadata: object.meta().clone(),
            object: Ok(object),
        }
    }
}

impl<'de, K: Resource + DeserializeOwned> Deserialize<'de> for Decoded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let why = match K::deserialize(&value) {
            Ok(object) => return Ok(Self::from(object)),
            Err(error) => error.to_string().into(),
        };
        let metadata = ObjectMeta::deserialize(&value["metadata"]).map_err(D::Error::custom)?;
        Ok(Self {
            metadata,
            object: Err(why),
        })
    }
}

impl<K: Resource<DynamicType = ()>> Resource for Decoded<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind(dynamic: &()) -> std::borrow::Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &()) -> std::borrow::Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &()) -> std::borrow::Cow<'_, str> {
        K::version(dynamic)
    }

    fn plural(dynamic: &()) -> std::borrow::Cow<'_, str> {
        K::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use nodeward_api::NodeDrain;
    use serde_json::json;

    use super::*;

    #[test]
    fn unreadable_object_keeps_its_name() {
        let value = json!({
            "metadata": { "name": "n1", "uid": "uid-1", "resourceVersion": "7" }, "spec": { "nodeName": 7 },
        });
        let decoded: Decoded<NodeDrain> = serde_json::from_value(value).unwrap();
        assert_eq!(decoded.meta().name.as_deref(), Some("n1"));
        assert!(decoded.object.unwrap_err().contains("invalid type"));
    }

    #[test]
    fn readable_object_is_what_it_was() {
        let value = json!({ "metadata": { "name": "n1" }, "spec": { "nodeName": "n1" } });
        let decoded: Decoded<NodeDrain> = serde_json::from_value(value).unwrap();
        assert_eq!(decoded.object.unwrap().spec.node_name, "n1");
    }
}
