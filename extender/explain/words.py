"""Every sentence that explains a pod, in one table. The other modules name the entry and give its values;
nothing decides by a text.

Findings are clauses without a period: ``Finding.text`` adds it, and others follow them with a comma. Lines
that start with a verb in lower case are fixes. Lists come as text that is already shortened.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, unique
from typing import NamedTuple

from packing.model.reasons import Reason


@unique
class Word(Enum):
    """A sentence with the names of its values in braces."""

    # The verdict
    FITS = "fits on {nodes}{doubt}"
    NOT_CHECKED = " (not checked: {filters})"
    UNKNOWN = "not known: {why}"
    NO_NODE = "there is no node"
    INVALID = "{problem}"
    TOO_LARGE = "No node is large enough, even when empty: waiting does not help"
    STARTING = "{nodes} that would accept it {are} starting"
    REFUSED = "{reason} ({nodes} of {every})"
    RULED_OUT = "{rule} ({nodes} of {every})"
    AND_STILL = "{why}; without that rule: {reason} ({nodes})"
    NEAREST = "{node}: {needs}"
    RESERVED = "waiting for room on {node}"
    NEVER_TRIED = "kube-scheduler does not try it: {why}"
    ALSO_LACKS = "{why} ({lacks})"

    # Nodes that are reserved for large jobs
    RESERVED_FOR_IT = "{nodes} {are} reserved for it: it is expected to start there by about {at}"
    RESERVED_FOR_OTHERS = "{nodes} {are} {reserved}"
    END_BEFORE = "With activeDeadlineSeconds: {most} or less it could use {them}."

    # Mistakes in names, labels and annotations
    MEANT = " (did you mean {near}?)"
    NO_QUEUE = "There is no queue {name}{meant}"
    QUEUES = "Queues: {names}."
    NO_SCHEDULER = "No other pod has the schedulerName {name}{meant}"
    IS_INSTALLED = "Is that scheduler installed?"
    NO_CLASS = "There is no {kind} {name}: the API server rejects the pod{meant}"
    WRONG_SECTION = "No component reads {name} in {what}s: write it as {other}"
    NO_SUCH_KEY = "Stowage has no {what} {name}{meant}"
    UNREAD = "No component reads the annotation {name}{meant}"
    IN_BYTES = "{name}: {amount} is in bytes. For {number} {unit}B write {number}{unit}"
    IN_MIB = "{name} counts MiB: for {amount} write {mib}"
    COUNTS_MIB = "{name} counts MiB: {amount} requests {count} MiB. For {amount_said} of memory write {mib}"
    NOT_DIVIDED = "Kubernetes does not divide {name}"
    DIVIDED_BY = (
        "For a fraction of a GPU use a sharing system, or nodes that Stowage shares (annotation "
        "{annotation}, docs/dialects.md)."
    )
    FEW_BYTES = "memory: {amount} is less than a MiB. For {number} MiB write {number}Mi"
    NOT_A_RESOURCE = "the API server rejects it: {name} is not a Kubernetes resource{meant}"
    NO_LIMIT = "the API server rejects it: {name} has a request but no limit; write {limit}"
    UNEQUAL = (
        "the API server rejects it: the request of {name} is {request}, its limit {limit}; both must be equal"
    )
    OTHER_PRIORITY = (
        "the API server rejects it: its priority is {priority}, that of its PriorityClass {name} {value}; "
        "remove spec.priority"
    )

    # Mistakes in requests and rules
    NOT_OFFERED = "No node offers {name}"
    OFFERED_INSTEAD = "Did you mean {near}?{offered}"
    NEEDS_PLUGIN = "It needs nodes with such devices and their device plugin.{offered}"
    PLUGIN_DOWN = "{hidden}.{offered}"
    ADD_OFFERING = "add a node that offers {name}"
    CHECK_PLUGIN = "check the device plugin and the driver of {node}"
    OFFERED_PROFILE = "{divided}{offered}"
    OFFERED = " Offered (number of nodes): {names}."
    NO_MODEL_DIVIDES = "No GPU model of the nodes has this MIG profile."
    MODELS_DIVIDE = "{models} can be divided into it: see stowage plan mig."
    NOT_TOGETHER = "No node offers {names} together, and a pod runs on one node"
    NUMBERS_OF_NODES = "Nodes that offer each: {names}."
    NO_LABEL = "No node has a label {key}{meant}"
    NO_VALUE = "No node has the label {key}={values}{meant}"
    NOT_AN_INTEGER = "Node affinity: {key} {op} {value} matches no node: the value is not an integer"
    NODES_HAVE = "Nodes have {names}."
    NO_MODEL = "No node has a GPU model that the pod allows{asked}"
    MODELS_ASKED = " ({key}: {value})"
    LAYOUT_UNREAD = "{name}: {problem}. GPUs are therefore chosen without the layout"
    NO_SHARED_NODE = "No node is reserved for shared GPUs: label nodes {label} (docs/bind.md)"
    SYSTEM_NOWHERE = "It requests fractions of GPUs in the format of {system}, which no node runs"
    SHARED_WITH = "Nodes share GPUs with {systems}."
    NOTHING_SHARED = "No node here shares its GPUs."
    NO_DEVICE_CLASS = "No DeviceClass is known"
    WITH_CLASSES = "A snapshot has them with: kubectl get {kinds} -A -o json"
    CLAIM_TO_COME = (
        "Its claim {claim} is made from the ResourceClaimTemplate {template} when the pod is created"
    )
    REPEAT = "Afterwards, repeat: stowage explain {pod}"
    NO_CLAIM = "Its claim {claim} does not exist in the namespace {namespace}{meant}"
    ELSEWHERE = " (there is one in {namespaces}, which pods of other namespaces cannot use)"
    NO_CLASS_OF_DEVICES = "There is no DeviceClass {name}, which its claim {claim} requests{meant}"
    NO_TEMPLATE = "There is no ResourceClaimTemplate {name} for its claim {claim}{meant}"
    LARGER_THAN_ANY = (
        "No device has a {what} of {asked}, as its claim {claim} requests: the largest has {largest}"
    )
    MORE_THAN_ANY = (
        "No node has {asked} devices as its claim {claim} requests them, of the class {name}: the most is "
        "{most}"
    )
    NO_DEVICE_OF_CLASS = "No device is of the class {name}, which its claim {claim} requests"
    NO_DEVICE_MATCHES = "No device matches {selector}, as its claim {claim} requests{has}"
    NO_VOLUME_CLAIM = (
        "There is no PersistentVolumeClaim {name} in the namespace {namespace}{meant}: kube-scheduler waits "
        "for it"
    )
    LEVEL_OF_KUEUE = "Kueue admits its workload only on nodes with this label (podset-required-topology)."
    AUTOSCALED = "A cluster autoscaler may add a node with it."
    PINNED = (
        "Its manifest sets nodeName {node}{missing}: kube-scheduler and Stowage are bypassed, and kubelet "
        "rejects the pod if the node has too few resources"
    )
    NO_SUCH_NODE = ", and there is no such node"
    NO_GPU = "It requests no GPU"
    OF_DEFAULT = (
        "Its schedulerName is default-scheduler: Stowage is called only if that scheduler is configured with "
        "it (scheduler-config/)"
    )
    LEFT_TO_SCHEDULER = (
        "Stowage's scheduler configuration leaves {name} to kube-scheduler, which requires that the node "
        "advertises it; whether yours ignores it (ignoredResources of NodeResourcesFit) is unknown"
    )
    BY_ANNOTATIONS = (
        "It requests a GPU in annotations only. If the configuration of kube-scheduler lists "
        "managedResources, such a pod is placed without Stowage (scheduler-config/README.md)"
    )

    # What else is known of the pod
    DRY_RUN = "By a server-side dry run as your user, which created nothing."
    NO_DRY_RUN = "Without a server-side dry run, by the defaults that are known: {why}"
    OVER_QUOTA = (
        "the API server rejects it: ResourceQuota {quota}: {used} of {hard} {name} are used, and it requests "
        "{more}"
    )
    REJECTED = "the API server rejects it: {why}"
    REJECTED_EXCERPT = "The API server rejects the manifest as it is written here: {why}"
    ADDED = "On creation, the API server adds {what}"
    SHARE_INSTEAD = (
        "On {node} it gets {share}, although whole GPUs are free elsewhere. To require a whole GPU, set "
        "{annotation}"
    )
    A_FRACTION = "a fraction of a GPU"
    NUMA_UNKNOWN = "NUMA is unknown on {nodes}, where kubelet may reject the pod: {why}"
    REJECTS = "It may fail on {node}: {why}"
    UNLISTED = "{text}"
    HIDDEN_GPUS = "Nodes have GPUs that they do not offer: {nodes}. See stowage top and /debug/problems"
    HELD_BY = "The GPUs of {node} are held by {pods}"
    FIT_AT_ONCE = "{fit} of the {copies} pods of its workload fit at the same time"
    FIT_AT_MOST = (
        "At most {fit} of the {copies} pods of its workload fit at the same time; their topology spread "
        "constraints are not checked"
    )
    TOGETHER_NOW = "All {pods} pods that must start together fit now"
    TOGETHER_LATER = "The {pods} pods that must start together fit only after other pods end or are evicted"
    MISALIGNED = (
        "Kubelet on {node} rejected it with TopologyAffinityError: its NUMA policy could not align the free "
        "resources. {why}. Kubelet does not retry it; what follows is for a new pod like it"
    )
    NO_TOPOLOGY = "The cluster has no NodeResourceTopology, so Stowage does not see NUMA nodes (docs/numa.md)"
    STILL_MISALIGNED = "The node still could not align it{free}"
    ALIGNED_NOW = "The node could align it now: its report has changed, or was late"
    FREE_BY_NUMA = ": free by NUMA node {free}"
    SUSPENDED = "its workload is suspended ({gate})"
    NOT_CREATED = "not created: {quota} is used up"
    GATED = "held by the scheduling gate{s} {gates}"
    HELD = "{held}; once released: {why}"
    NO_CALL = "no call for it: the pod is {gates}"
    NEVER_ASKED = (
        "kube-scheduler has not called Stowage for this pod: it has another scheduler, or no node passed "
        'kube-scheduler\'s own filters ("Insufficient nvidia.com/gpu" never reaches an extender)'
    )

    # The gang
    GANG = "It belongs to the gang {gang}: {running} of {members} members run{more}"
    GANG_SUCCEEDED = ", {count} more succeeded"
    GANG_MINIMUM = ", {count} required"
    GANG_ANY = ", no minimum"
    GANG_DOMAIN = ", in one {level}{where}"
    GANG_SLICE = ", in slices of {size} in one {level}{where}"
    GANG_UNREADABLE_DOMAIN = ", in a topology domain or slice that cannot be read"
    GANG_UNCOUNTED = "; they start one by one, because {source}, which holds their number, is unknown"
    GANG_GATED = "; {count} held by scheduling gates"
    GANG_TOO_FEW = ", so the minimum cannot run yet"
    GANG_NOTE = "; {note}"

    NO_ROOM_IN_ONE = "no {level} has room for the {missing} pods that must start together{most}"
    MOST_ROOM = ": {domain} has room for {fit}"
    GANG_FITS = "{fit} of the {missing} pods that must start together fit{s} now"

    # Why a node does not take the pod
    NO_DEVICES = "node does not have the devices that the pod's claims request"
    CLAIM_ELSEWHERE = "the devices of one of the pod's claims are on other nodes"
    BY_CLAIMS = "{why}"
    LACKS = "{reason}"
    RULE = "{rule}"
    RULE_OF = "{rule}: {detail}"
    NOT_ON_NODE = "node does not offer {name}"
    OTHER_REASONS = "other reasons"
    NUMA_DOUBT = "NUMA is unknown: {why}"

    # What is missing on a node
    NEEDS_CPU = "needs {asked} CPU{s}, {free} of {total} are free"
    NEEDS_MEMORY = "needs {asked} GiB of memory, {free} of {total} are free"
    RUNS_PODS = "runs {pods} of at most {total} pods"
    LEFT = "{free} of {total} are free"
    REPORTS_NONE = "the node reports none"
    NEEDS_BYTES = "needs {asked} {unit} of {what}, {left}"
    NEEDS_DEVICES = "needs {asked} {what}, {left}"
    NEEDS_EACH = "needs {asked} GiB on each GPU or share, {has}"
    LARGEST_HERE = "the largest here has {size}"
    SIZE_UNKNOWN = "their size here is unknown"
    NEEDS_PEERS = "needs {asked} NVLink peers, {peers} of its {free} free GPUs are"
    NEEDS_SURE_PEERS = "needs {asked} NVLink peers, only {peers} of its {free} free GPUs are certain to be"
    NEEDS_SEPARATE = "needs {asked} different GPUs, would get {given}"
    NEEDS_LARGER = "needs a GPU with {asked}, the largest GPU has {largest}"
    NEEDS_GPUS = "needs {asked} GPUs{size}, {enough} of {gpus} have that"
    NEEDS_ONE_OF = "needs one GPU{size}, the largest of {gpus} has {largest}"
    NEEDS_ONE = "needs one GPU{size}, none of {gpus} has that"
    WITH_FREE = " with {amounts} free"
    PERCENT_COMPUTE = "{percent} % of {its} compute"

    # What it requests
    CPUS = "{count} CPU{s}"
    MEMORY_MIB = "{count} MiB of memory"
    MEMORY_GIB = "{count} GiB of memory"
    DEVICES = "{count} {what}"
    PART_COMPUTE = "{percent} % of the compute"
    PART_MEMORY = "{percent} % of the memory"
    PART_MIB = "{count} MiB of the memory"
    PART_GIB = "{count} GiB of the memory"
    OF_GPU = "{parts} of 1 GPU"
    OF_EACH = "{parts} of each of {gpus}"
    MODELS = "models {names}"
    GIB_EACH = "at least {count} GiB on each GPU"
    ONLY_WHOLE = "only whole GPUs"
    ISLAND = "NVLink island required"

    # Fixes of the pod
    WRITE = "write {line}"
    LEAVE_OUT = "remove {what}"
    WHOLE_GPUS = "write {line} for whole GPUs, without {parts}"
    TOLERATE = "write tolerations: [{tolerations}]{by_plugin}"
    BY_PLUGIN = " (the API server would add it with the admission plugin {plugin})"
    TOLERATE_MANY = "tolerate its {count} taints, as kubectl describe node {node} has them"
    LEAVE_OUT_RUNTIME = "remove runtimeClassName: {name}, or label nodes that have its runtime"
    LEAVE_OUT_LABELS = "remove {labels} from spec.nodeSelector"
    CHANGE_AFFINITY = "change spec.affinity.nodeAffinity{asked}"
    REPLACE_AFFINITY = (
        'write matchExpressions: [{{key: {key}, operator: In, values: ["{value}"]}}] in place of {asked} in '
        "spec.affinity.nodeAffinity"
    )
    LEAVE_OUT_AFFINITY = "remove {asked} from spec.affinity.nodeAffinity"
    REQUEST_LESS = "request at most {amounts} per pod: {node} has no more{now}"
    FREE_NOW = "; {amounts} are free now"
    OTHER_MEMBER = "change {pod} of its gang first: no node accepts it, even when empty"
    SIZE_OF_GPU = "{size} of a GPU's memory"
    SIZE_OF = "{size} of {what}"
    MIB_IN = "{count}Mi in {annotation}"
    NOT_REPORTED = "remove its request for {what}: {node} reports none"
    SMALLER_GANG = (
        "make the gang smaller or add nodes: not all members that must run together fit on empty nodes"
    )

    # Fixes of the cluster
    LABEL_FOR_SHARING = "kubectl label node NAME {label}"
    LIST_CLAIMS = "kubectl get resourceclaims -n {namespace}"
    UNCORDON = "kubectl uncordon {node}"
    BY_KUEUE = (
        "wait: Kueue has assigned the pod to {node}, and assigns another node once this one is deleted or "
        "has failed for long enough (its Workload: status.unhealthyNodes)"
    )
    SEE_TAINT = "see why it has this taint: kubectl describe node {node}"
    WAIT_START = "wait: {node} is starting and will lose the taint {keys}"
    WAIT_ENDING = "wait: {pods} on {node} {are} terminating and free{s} enough room"
    WAIT_EVICTION = "wait: {actor} will evict {pods}"
    EVICT = "evict {pods}{by}"
    BY_EVICTOR = ", or set evictor: on (kube-scheduler cannot evict a gang that spans nodes)"
    ON_NODE = "{pods} on {node}"
    WAIT_END = "wait until {pods} on {node} end{s}: that frees enough room"
    ROLLOUT = (
        "{pods} on {node} keeps running until this pod, its replacement, is ready: set maxSurge: 0 or "
        "strategy Recreate, or add room for one more pod"
    )
    ROLLOUT_OF_RAY = (
        "{pods} on {node} keeps running until the RayCluster that replaces its own is ready: add room for "
        "one more RayCluster, or set the RayService's upgradeStrategy to type: None and delete the old one"
    )
    DAEMONSETS_HOLD = (
        "lower the requests of DaemonSets and static pods on {node}, which hold {amount}: {pods}"
    )
    MOVE_WITHOUT_GPUS = "move pods without GPUs off {node}, where they hold {amount}: {pods}"
    MOVES = "{moves}"
    MOVES_BY_EVICTOR = (
        "wait: the evictor moves other pods once this one has been pending long enough: {moves}"
    )
    LET_MOVE = "let the evictor move other pods (evictor: on, consolidation: on): {moves}"
    ADD_NODE = "add a node like {node}{type}: stowage plan change --add 1x{node}"
    ADD_NODES = "add {count} nodes like {node}{type}: stowage plan change --add {count}x{node}"
    OF_TYPE = " ({type})"
    WAIT_LAYOUT = "wait: the evictor changes the MIG layout once waiting costs more than the change: {change}"
    GIVE_LAYOUT = (
        "give the idle node {node} the MIG layout {layout}: kubectl label node {node} "
        "{label}={layout} --overwrite (or let the evictor: mig_layouts: on)"
    )
    ADVICE = "{advice}"
    FREE_NUMA_ADVICE = "free by NUMA node: {free}; {advice}"
    ONLY_FRACTIONS = "nothing: it offers only fractions of GPUs, as {resource} (docs/dialects.md)"
    DIVIDES_NONE = (
        "nothing, unless its register changes: its GPUs are unhealthy, or in a mode that Stowage does not "
        "divide (docs/dialects.md)"
    )

    DEARER = "evictions there cost more"
    NOT_ENOUGH = "evicting all evictable pods there is not enough"

    # How fixes go on
    ACCEPTS = ": {nodes} would accept {what}{given}"
    ACCEPTS_FULL = ": {nodes} could accept {what} but {are} full now{given}"
    ACCEPTS_PERHAPS = ": {nodes} may accept {what} (unknown: {doubt}){given}"
    ALLOWED_FIT = ": it would fit on {nodes} that its rules allow"
    IT = "it"
    WHOLE_GANG = "the whole gang"
    GIVEN = "{count} of {total} {kind} of {gpus} {model}{where}"
    GIVEN_OF_ONE = "{count} of {total} {kind} of one {model}"
    DIFFERENT_GPUS = ", of different GPUs"
    PERHAPS_ONE_GPU = ", perhaps of the same GPU"
    THERE_GETS = "; there it gets {given}"
    SOME_GET = "; on {count} of them it gets {given}"
    BOTH = "{first} and {second}"
    THEN_IT = "; then it {why}"
    THEN = "; then: {why}"
    NEXT = "then {fix}"

    # When it starts
    NEVER_STARTS = "No start can be predicted: no pod with a known end makes room for it."
    STARTS = "It is likely to start within {half} (50 %), {most} (90 %){once}."
    WITHIN = "within {span}"
    AT_SOME_TIME = "at an unknown time"
    AND_MORE = " and {count} more"
    ONCE_ENDED = ", once {pods}{more} have ended on {node}{by}"
    BY_LIMIT = " (limit: {fields})"

    # Why one node is better than another
    ONLY_NODE = "the only node that fits"
    AS_GOOD = "as good as {node}"
    MORE_ROOM = "leaves {gpus} GPU more room for typical pods than {node}"
    LESS_ROOM = "costs {gpus} GPU more room for typical pods than {node}"
    FILLS = "fills {node}"
    TAKES_USED = "uses GPU{s} that other pods already share"
    KEEPS_MODEL = "saves the {better} of {node}, which is worth more than its own {model}"
    KEEPS_NODE = "keeps {node} whole"
    KEEPS_NODES = "keeps {count} idle nodes whole"
    LEAVES_MIG = "leaves {count} x {profile} free on {node}"
    LEAVES_TOGETHER = "leaves {count} GPU{s} free together on {node}"
    BREAKS_IDLE = "breaks up an idle node"
    SPLITS = "splits {count} free GPUs that would stay together"
    TAKES_MODEL = "takes a more valuable {model}"
    NO_COST = "costs no room that typical pods need"
    NVLINK_UNKNOWN = "NVLink islands unknown"
    NVLINK = "NVLink islands of {sizes} GPUs ({source})"
    NO_NVLINK = "no NVLink ({source})"

    @property
    def template(self) -> str:
        """The text with the names of its values in braces."""
        return str(self.value)

    def __call__(self, **values: object) -> Said:
        return Said(self, values)


class Said(NamedTuple):
    """A sentence as data: its entry in the table, and the values."""

    word: Word
    values: Mapping[str, object]

    def __str__(self) -> str:
        return self.word.template.format(**self.values)


TERMS: Mapping[str, str] = {
    "slots": "uses room that typical pods need",
    "fill": "leaves a fraction of a GPU that is hard to use",
    "stranding": "leaves free GPUs without enough CPU for them",
    "unusable GPU": "leaves fractions of GPUs that no typical pod can use",
    "domains": "breaks into a network domain that is mostly idle",
    "end": "would stay busy longer because of the pod",
    "islands": "splits an NVLink island that typical pods need, or gives the pod no NVLink peers",
    "device": "allocates more of a GPU, or a more valuable one, than other nodes would",
    "gang": "is far from other members of the pod's gang, or has too little room near it for them",
    "claims": "splits devices that other claims may need whole",
    "spot": "spot node; the pod did not ask for one",
    "on demand": "on-demand node; the pod could run on spot",
    "NUMA": "spreads the pod over more NUMA nodes than it needs",
    "less wanted": "allocates devices that the claims list as an alternative",
    "parts of one GPU": "allocates several replicas or instances of the same GPU to a container",
}
"""Meaning of a positive term of the cost (``Policy.terms``, and the costs of forecasts)."""
GATES: Mapping[str, str] = {
    "kueue.x-k8s.io/admission": "Kueue has not admitted it to its queue",
    "kueue.x-k8s.io/topology": "Kueue has not assigned it to a topology domain",
    "kueue.x-k8s.io/elastic-job": "Kueue has not admitted this part of its elastic job",
}
"""Sources: kubernetes-sigs/kueue at ff69552e79ad, ``pkg/controller/jobs/pod/constants/constants.go``
(SchedulingGateName), ``apis/kueue/v1beta2/topology_types.go`` (TopologySchedulingGate) and ``constants.go``
(ElasticJobSchedulingGate)."""
_TOO_LITTLE_BESIDE = "other pods on the node leave too little for its free GPUs"
ADVICE: Mapping[Reason, str] = {
    Reason.UNKNOWN_NODE: "wait a moment; if this persists, Stowage cannot watch nodes",
    Reason.NOT_IN_SHARD: (
        "check the setting node_selector and the node's labels; new nodes of the shard are used after 10 s"
    ),
    Reason.UNREADABLE: "see problems in GET /debug/nodes/{name} and the log",
    Reason.REPARTITIONING: "wait: the MIG manager is reconfiguring the node (nvidia.com/mig.config.state)",
    Reason.LAYOUT_CHANGES: "wait: Stowage is changing it (annotation stowage.dev/mig-change, docs/mig.md)",
    Reason.RESERVED: (
        "wait until that job has started, or set activeDeadlineSeconds so that the pod ends before "
        "(docs/queues.md)"
    ),
    Reason.INVALID_LAYOUT: (
        "repair the node's MIG configuration (nvidia.com/gpu.product ends in -MIG-INVALID)"
    ),
    Reason.OVERCOMMITTED: (
        "the node's allocatable shrank under running pods: it accepts no pods until enough of them end"
    ),
    Reason.NO_SUCH_RESOURCE: "nothing: the node does not advertise that resource",
    Reason.GPUS_TOO_SMALL: "request a smaller share, or nodes with larger GPUs",
    Reason.WRONG_MODEL: "allow more models",
    Reason.TOO_FEW_GPUS: "request fewer GPUs per pod",
    Reason.ISLAND_TOO_SMALL: (
        "request fewer GPUs per pod, or do not require NVLink; also where a device plugin may allocate GPUs "
        "outside the island"
    ),
    Reason.NO_FREE_GPUS: "wait until pods there end",
    Reason.FRAGMENTED: "wait, or request less per GPU",
    Reason.SHARES_USED_UP: "wait, or configure the node's device plugin to split GPUs into more shares",
    Reason.AGENTS_NOT_READY: "wait, or repair them: docs/dialects.md lists their conditions",
    Reason.WRONG_MODE: "allow another mode, or check the mode in the node's labels and annotations",
    Reason.MISALIGNED: "wait, or request less, so that all of it fits on one NUMA node",
    Reason.NO_FREE_CPU: _TOO_LITTLE_BESIDE,
    Reason.NO_FREE_MEMORY: _TOO_LITTLE_BESIDE,
    Reason.OLD_DRIVER: "upgrade the driver, or let GPU feature discovery label the node",
    Reason.TOO_MANY_REPLICAS: "request one replica",
    Reason.PARTS_OF_ONE_GPU: (
        "request one GPU, or allow replicas: annotation stowage.dev/separate-gpus: none"
    ),
    Reason.PLUGIN_BUSY: "wait, or check why that pod does not start",
    Reason.NO_FREE_PEERS: "wait: free GPUs of the node are, or may be, in different islands",
    Reason.NO_ASSIGNER: "see docs/bind.md: how nodes share GPUs",
    Reason.UNHEALTHY_GPU: "repair it; docs/dialects.md lists the signs that close a node",
    Reason.GANG_DOES_NOT_FIT: (
        "wait, or make the gang smaller: the pod itself fits there, but not all members that must "
        "run together"
    ),
    Reason.OTHER_DOMAIN: "wait: all members run in one domain, which is chosen with the first of them",
    Reason.NO_DOMAIN: "label the node, or require another topology level",
    Reason.OTHER_WAY: "wait, or remove the device plugin or the DRA driver from the node",
    Reason.PART_OF_A_GPU: "let the pod use a fraction: annotation stowage.dev/whole-gpu: false",
    Reason.SMALL_DEVICES: "require less memory: annotation stowage.dev/min-gpu-memory",
    Reason.BELOW_MINIMUM: "request a larger share: the setting minimum_slice_milli rejects smaller shares",
    Reason.LEAVING: "nothing: a taint announces it",
    Reason.ON_SPOT: "wait for other nodes, or declare the pod restartable; only with spot: require",
}
"""By reason, for all but ``FITS``. docs/pending.md has the same sentences, with links."""
