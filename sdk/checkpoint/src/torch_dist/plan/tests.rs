//! Places of items.

use proptest::prelude::*;

use super::*;

fn chunk(name: &str, shape: impl Into<Shape>, region: Region) -> Content {
    Content::Chunk {
        name: name.into(),
        dtype: Dtype::Bf16,
        shape: Arc::new(shape.into()),
        region,
    }
}

fn whole(name: &str, extents: [u64; 2]) -> Content {
    chunk(name, extents, Region::whole(&Shape::new(extents)))
}

fn object(name: &str) -> Content {
    Content::Object {
        name: name.into(),
        bytes: vec![1; 100].into(),
    }
}

/// Asserts that items lie one after another, as close as their alignment lets them, and files end with their last item.
fn assert_placed(plan: &FilePlan) {
    let mut ends = vec![0; plan.files().len()];
    for item in plan.items() {
        let bytes = item.bytes();
        let end = ends[item.file];
        assert!(bytes.start >= end && bytes.start % 64 == 0);
        match item.data() {
            Some(data) => {
                assert_eq!(data.start % DATA_ALIGNMENT, 0);
                assert!(data.start > bytes.start && data.end < bytes.end);
                assert!(bytes.start < end + DATA_ALIGNMENT);
            }
            None => assert!(bytes.start < end + 64),
        }
        ends[item.file] = bytes.end;
    }
    let lens: Vec<u64> = plan.files().iter().map(|file| file.len).collect();
    assert_eq!(lens, ends);
    let decoded = Metadata::decode(&plan.metadata().encode(), &Location::default()).unwrap();
    assert_eq!(&decoded, plan.metadata());
}

#[test]
fn items_follow_each_other_with_their_data_on_pages_and_without_overlap() {
    let contents = [
        whole("a", [3, 5]),
        object("o/shard_0_1"),
        object("p/shard_0_1"),
        chunk("b", [4, 4], Region::new([0, 0], [1, 4])),
        chunk("b", [4, 4], Region::new([1, 0], [3, 4])),
        // Without a byte of data.
        whole("c", [0, 4]),
    ];
    let plan = FilePlan::new(contents, FileLimit::Bytes(u64::MAX)).unwrap();
    assert_eq!(plan.files().len(), 1);
    assert_placed(&plan);
    // Two objects of 100 bytes do not take a page each.
    assert_eq!(plan.items()[2].offset - plan.items()[1].offset, 128);
}

proptest! {
    #[test]
    fn any_contents_are_placed_on_pages_and_by_their_lengths_alone(
        sizes in proptest::collection::vec((0u64..300, 0u64..30, any::<bool>()), 0..20),
        max in 1u64..100_000,
    ) {
        let contents = |byte: u8| {
            sizes.iter().enumerate().map(move |(number, &(rows, columns, is_object))| {
                if is_object {
                    let bytes = vec![byte; usize::try_from(rows).unwrap() + 22].into();
                    Content::Object { name: number.to_string().into(), bytes }
                } else {
                    whole(&number.to_string(), [rows, columns])
                }
            })
        };
        let plan = FilePlan::new(contents(0), FileLimit::Bytes(max)).unwrap();
        assert_placed(&plan);
        // A file is longer than it may be only if it holds a single item.
        for (file, planned) in plan.files().iter().enumerate() {
            let items = plan.items().iter().filter(|item| item.file == file).count();
            prop_assert!(planned.len <= max || items == 1);
        }
        let other = FilePlan::new(contents(1), FileLimit::Bytes(max)).unwrap();
        let places = |plan: &FilePlan| plan.items().iter().map(|item| (item.file, item.bytes())).collect::<Vec<_>>();
        prop_assert_eq!(places(&plan), places(&other));
        prop_assert_eq!(plan.files(), other.files());
    }
}

#[test]
fn a_full_file_is_followed_by_another_and_a_large_item_has_its_own() {
    let contents = [
        whole("a", [1, 1]),
        whole("b", [1, 1]),
        whole("c", [100, 100]),
        whole("d", [1, 1]),
    ];
    let plan = FilePlan::new(contents, FileLimit::Bytes(12_000)).unwrap();
    let names: Vec<&str> = plan.files().iter().map(|file| &*file.name).collect();
    assert_eq!(names, ["__0_0.distcp", "__0_1.distcp", "__0_2.distcp"]);
    let files: Vec<usize> = plan.items().iter().map(|item| item.file).collect();
    assert_eq!(files, [0, 0, 1, 2]);
    assert!(plan.files()[0].len <= 12_000);
    assert!(plan.files()[1].len > 20_000);
}

#[test]
fn nothing_to_store_needs_no_file() {
    let plan = FilePlan::new([], FileLimit::Bytes(1)).unwrap();
    assert!(plan.files().is_empty() && plan.items().is_empty());
}

#[test]
fn conflicting_contents_are_refused() {
    let half = |shape: [u64; 2]| chunk("a", shape, Region::new([0, 0], [1, 2]));
    for contents in [
        vec![object("o"), object("o")],
        vec![whole("a", [1, 1]), object("a")],
        vec![object("a"), whole("a", [1, 1])],
        vec![half([2, 2]), half([3, 2])],
        // An empty chunk where another chunk lies could not be told from it by its offsets.
        vec![
            whole("a", [2, 2]),
            chunk("a", [2, 2], Region::new([0, 0], [0, 2])),
        ],
    ] {
        let error = FilePlan::new(contents, FileLimit::Bytes(1 << 20)).unwrap_err();
        assert!(matches!(error, Error::PlanConflict { .. }), "{error}");
    }
    let error = FilePlan::new([half([2, 2])], FileLimit::Bytes(1 << 20)).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("a [2, 2]: [1, 0]+[1, 2] is not covered"),
        "{error}"
    );
    let error = FilePlan::new(
        [whole("big", [1 << 40, 1 << 40])],
        FileLimit::Bytes(1 << 20),
    )
    .unwrap_err();
    assert!(error.to_string().contains("tensor big"), "{error}");
}

#[test]
fn what_chunks_share_is_held_once() {
    let rows = |count: u64| {
        let name: Arc<str> = "a name that is long enough to be seen in a sum".into();
        let shape = Arc::new(Shape::new([count, 4]));
        let row = move |row| Content::Chunk {
            name: Arc::clone(&name),
            dtype: Dtype::Bf16,
            shape: Arc::clone(&shape),
            region: Region::new([row, 0], [1, 4]),
        };
        FilePlan::new((0..count).map(row), FileLimit::Bytes(u64::MAX)).unwrap()
    };
    let plan = rows(1000);
    let [first, .., last] = plan.items() else {
        panic!("a thousand items");
    };
    assert!(Arc::ptr_eq(&first.name, &last.name));
    let layouts = [first, last].map(|item| match &item.body {
        Body::Chunk { item, .. } => Arc::clone(item),
        Body::Object(_) => panic!("a chunk"),
    });
    assert!(Arc::ptr_eq(&layouts[0], &layouts[1]));
    let entry = plan.metadata().tensors.values().next().unwrap();
    for (item, chunk) in plan.items().iter().zip(&entry.chunks) {
        let Body::Chunk { region, .. } = &item.body else {
            panic!("a chunk");
        };
        assert!(Arc::ptr_eq(region, &chunk.region));
        assert!(Arc::ptr_eq(&chunk.file, &plan.files()[0].name));
    }
    // An item, a line of the metadata, and one region with its two lists for each.
    let each = (rows(2000).held_bytes() - plan.held_bytes()) / 1000;
    let own = size_of::<PlannedItem>() + size_of::<Chunk>() + size_of::<Region>();
    assert!(
        (own..own + 100).contains(&usize::try_from(each).unwrap()),
        "{each}"
    );
}
