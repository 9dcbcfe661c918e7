"""Simulates the kubelet's pod-resources service, version 1, on a Unix socket with Google's own gRPC.

    kubelet.py SOCKET ANSWER.json

Answers List with the file's current content, in protobuf's JSON notation; without the file, with UNAVAILABLE.
Prints `ready` once it listens, and one line for each call; ends with its standard input.
"""

import pathlib
import sys
from concurrent import futures

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

# kubelet/pkg/apis/podresources/v1/api.proto: name, number, type (a message by its name), `*` for repeated.
MESSAGES = {
    "ListPodResourcesRequest": [],
    "ListPodResourcesResponse": [("pod_resources", 1, "PodResources*")],
    "PodResources": [
        ("name", 1, "string"),
        ("namespace", 2, "string"),
        ("containers", 3, "ContainerResources*"),
        ("cpu_ids", 4, "int64*"),
        ("memory", 5, "ContainerMemory*"),
    ],
    "ContainerResources": [
        ("name", 1, "string"),
        ("devices", 2, "ContainerDevices*"),
        ("cpu_ids", 3, "int64*"),
        ("memory", 4, "ContainerMemory*"),
        ("dynamic_resources", 5, "DynamicResource*"),
    ],
    "ContainerMemory": [("memory_type", 1, "string"), ("size", 2, "uint64"), ("topology", 3, "TopologyInfo")],
    "ContainerDevices": [("resource_name", 1, "string"), ("device_ids", 2, "string*"), ("topology", 3, "TopologyInfo")],
    "TopologyInfo": [("nodes", 1, "NUMANode*")],
    "NUMANode": [("ID", 1, "int64")],
    "DynamicResource": [
        ("claim_name", 2, "string"),
        ("claim_namespace", 3, "string"),
        ("claim_resources", 4, "ClaimResource*"),
    ],
    "ClaimResource": [
        ("cdi_devices", 1, "CDIDevice*"),
        ("driver_name", 2, "string"),
        ("pool_name", 3, "string"),
        ("device_name", 4, "string"),
    ],
    "CDIDevice": [("name", 1, "string")],
}


def message_classes():
    """The classes of all messages, by name."""
    kinds = descriptor_pb2.FieldDescriptorProto
    scalars = {"string": kinds.TYPE_STRING, "int64": kinds.TYPE_INT64, "uint64": kinds.TYPE_UINT64}
    file = descriptor_pb2.FileDescriptorProto(name="api.proto", package="v1", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            added = message.field.add(name=field, number=number, label=label)
            if kind in scalars:
                added.type = scalars[kind]
            else:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".v1.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}")) for name in MESSAGES}


def main():
    socket, answer = sys.argv[1], pathlib.Path(sys.argv[2])
    classes = message_classes()

    def list_pods(_request, context):
        print("called", flush=True)
        try:
            text = answer.read_text()
        except OSError:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the kubelet is starting")
        return json_format.Parse(text, classes["ListPodResourcesResponse"]())

    handler = grpc.unary_unary_rpc_method_handler(
        list_pods,
        request_deserializer=classes["ListPodResourcesRequest"].FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler})]
    )
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    print("ready", flush=True)
    sys.stdin.read()
    server.stop(None)


if __name__ == "__main__":
    main()
