// A device plugin whose devices exist in the stand-in for NVML only.
//
//	deviceplugin DIRECTORY UUID...
//
// DIRECTORY is the kubelet's for plugins. Each UUID is offered as one nvidia.com/gpu.
package main

import (
	"context"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugins "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const socket = "stepmem-test.sock"

type server struct {
	plugins.UnimplementedDevicePluginServer
	uuids []string
}

func (*server) GetDevicePluginOptions(context.Context, *plugins.Empty) (*plugins.DevicePluginOptions, error) {
	return &plugins.DevicePluginOptions{}, nil
}

func (s *server) ListAndWatch(_ *plugins.Empty, stream plugins.DevicePlugin_ListAndWatchServer) error {
	answer := &plugins.ListAndWatchResponse{}
	for _, uuid := range s.uuids {
		answer.Devices = append(answer.Devices, &plugins.Device{ID: uuid, Health: plugins.Healthy})
	}
	if err := stream.Send(answer); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (s *server) Allocate(_ context.Context, request *plugins.AllocateRequest) (*plugins.AllocateResponse, error) {
	answer := &plugins.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		visible := map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")}
		answer.ContainerResponses = append(answer.ContainerResponses, &plugins.ContainerAllocateResponse{Envs: visible})
	}
	return answer, nil
}

func main() {
	directory, uuids := os.Args[1], os.Args[2:]
	listener, err := net.Listen("unix", filepath.Join(directory, socket))
	if err != nil {
		log.Fatal(err)
	}
	grpcServer := grpc.NewServer()
	plugins.RegisterDevicePluginServer(grpcServer, &server{uuids: uuids})
	go func() { log.Fatal(grpcServer.Serve(listener)) }()
	connection, err := grpc.NewClient("unix://"+filepath.Join(directory, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	request := &plugins.RegisterRequest{Version: plugins.Version, Endpoint: socket, ResourceName: "nvidia.com/gpu"}
	if _, err := plugins.NewRegistrationClient(connection).Register(context.Background(), request); err != nil {
		log.Fatal(err)
	}
	select {}
}
